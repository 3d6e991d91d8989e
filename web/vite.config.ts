// One script and one stylesheet for each of two pages, as files of the Python package: the view, and the jobs of the
// service (--mode jobs). Classic scripts, so that a copy of the view opens from a disk.
import { defineConfig } from "vite";

export default defineConfig(({ mode }) => ({
  root: "src",
  base: "./",
  publicDir: mode === "jobs" ? false : "../public",
  esbuild: { jsx: "automatic", jsxImportSource: "preact", legalComments: "none" },
  build: {
    target: "es2022",
    outDir: mode === "jobs" ? "../../src/pairwright/service/page/built" : "../../src/pairwright/view/built",
    emptyOutDir: true,
    modulePreload: false,
    cssCodeSplit: false,
    rollupOptions: {
      input: mode === "jobs" ? "src/jobs.tsx" : "src/main.tsx",
      output: mode === "jobs"
        ? { format: "iife", entryFileNames: "jobs.js", assetFileNames: "jobs[extname]" }
        : { format: "iife", entryFileNames: "view.js", assetFileNames: "view[extname]" },
    },
  },
}));
