"""Fails where pip's log on standard input shows a package downloaded in more than one version.

That is what pip does when it backtracks: it takes minutes, and a bound in pyproject.toml ends it.
"""

import re
import sys
from collections import defaultdict

FILE = re.compile(
    r"(?:Downloading|Using cached|Processing) (?:\S*/)?([\w.]+?)-(\d[^-\s]*?)"
    r"(?:-\S+\.whl|\.tar\.gz|\.zip)"
)


def versions(log: str) -> dict[str, set[str]]:
    """Package → the versions whose files were fetched."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, version in FILE.findall(log):
        found[name.lower().replace("_", "-").replace(".", "-")].add(version)
    return found


def main() -> None:
    """Pass the log on, and judge it."""
    log = sys.stdin.read()
    print(log, end="")
    found = versions(log)
    several = {name: sorted(seen) for name, seen in found.items() if len(seen) > 1}
    for name, seen in several.items():
        print(f"{name} was downloaded in {len(seen)} versions: {', '.join(seen)}", file=sys.stderr)
    print(f"{len(found)} packages fetched, {len(several)} of them more than once")
    sys.exit(bool(several))


if __name__ == "__main__":
    main()
