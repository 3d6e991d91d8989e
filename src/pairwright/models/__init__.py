"""Model folders from other forms: GGUF files of llama.cpp, converted to what transformers and this package load."""
