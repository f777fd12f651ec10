"""Hooks of the documentation site: links that leave docs/ lead to the repository, and pictures from there are copied.

So a page has the same relative links on GitHub and on the site.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"(\]\()((?:\.\./)+[^)#]+)")
PICTURES = "pictures"


def on_files(files: Any, config: Any) -> Any:
    """Add the pictures of the benchmarks to the site."""
    for path in sorted((ROOT / "benchmarks/results").glob("*.svg")):
        files.append(File.generated(config, f"{PICTURES}/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Replace the links of a page to files outside of docs/."""
    folder = posixpath.dirname(page.file.src_uri)

    def replace(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", folder, match[2]))
        if path.startswith("docs/"):
            return match[0]
        if path.endswith(".svg"):
            return match[1] + posixpath.relpath(f"{PICTURES}/{posixpath.basename(path)}", folder or ".")
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"{match[1]}{config.repo_url}/{kind}/main/{path}"

    return LINK.sub(replace, markdown)
