// Runs a Python script in Pyodide: node pyodide.mjs FOLDER_OF_PYODIDE SCRIPT ARGUMENT...
// The first part of each absolute path, such as /work, is mounted under its own name.
import { existsSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [folder, ...words] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(`${folder}/pyodide.mjs`));
const python = await loadPyodide({ env: { HOME: "/tmp", PYTHONDONTWRITEBYTECODE: "1" } });
for (const root of new Set(words.filter((word) => word[0] === "/" && existsSync(word)).map((word) => `/${word.split("/")[1]}`))) {
  python.FS.mkdirTree(root);
  python.FS.mount(python.FS.filesystems.NODEFS, { root }, root);
}
python.globals.set("words", python.toPy(words));
process.exitCode = python.runPython(`
import runpy, sys
sys.argv = list(words)
try:
    runpy.run_path(words[0], run_name="__main__")
    code = 0
except SystemExit as end:
    code = end.code if isinstance(end.code, int) else int(bool(end.code))
code
`);
