"""Convert between model folders and other formats, such as GGUF files of llama.cpp."""
