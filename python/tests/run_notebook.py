#!/usr/bin/env python3
"""Executes a notebook, cell by cell in one namespace, and writes what each cell prints and returns into it.

    python/tests/run_notebook.py docs/python.ipynb

Text only, and no kernel: the notebooks here need no more, and what is not installed needs no pinning.
"""

import ast
import contextlib
import io
import json
import sys
from pathlib import Path


def run(source, namespace):
    """Returns the output of a cell, and the value of its last expression."""
    tree, out, value = ast.parse(source), io.StringIO(), None
    last = ast.Expression(tree.body.pop().value) if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(out):
        exec(compile(tree, "<cell>", "exec"), namespace)  # noqa: S102
        if last is not None:
            value = eval(compile(last, "<cell>", "eval"), namespace)  # noqa: S307
    return out.getvalue(), value


def executed(notebook):
    """The notebook with its outputs."""
    namespace, count = {"__name__": "__main__"}, 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        count += 1
        printed, value = run("".join(cell["source"]), namespace)
        outputs = []
        if printed:
            outputs.append({"output_type": "stream", "name": "stdout", "text": printed.splitlines(keepends=True)})
        if value is not None:
            data = {"text/plain": repr(value).splitlines(keepends=True)}
            outputs.append({"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": data})
        cell["execution_count"], cell["outputs"] = count, outputs
    return notebook


def main():
    path = Path(sys.argv[1])
    notebook = executed(json.loads(path.read_text(encoding="utf-8")))
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
