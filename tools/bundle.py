"""Make one archive that installs Rankscope without a network: `python -m tools.bundle OUT`.

It contains the wheels of the program and of all it needs, for the interpreter and the machine that run this
command; the wheel of the program contains the files for browsers, the bundled data, the lessons and the docs.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
CHECKSUMS = "SHA256SUMS"


def make(out: Path, torch_wheel: Path | None = None) -> Path:
    """Write the archive into a folder and return its path.

    Args:
        torch_wheel: the build of torch to include; without it the one of pip's index.
    Raises:
        subprocess.CalledProcessError: if pip cannot build or download a wheel; its output names the reason.
    """
    out.mkdir(parents=True, exist_ok=True)
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    name = f"rankscope-{platform.system().lower()}-{platform.machine()}-{python}"
    with tempfile.TemporaryDirectory(dir=out) as folder:
        content = Path(folder) / name
        wheels = content / "wheels"
        wheels.mkdir(parents=True)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        wheel = [*pip, "wheel", "--no-deps", "--wheel-dir", str(wheels)]
        subprocess.run([*wheel, str(REPOSITORY)], check=True, stdout=sys.stderr)
        # The tested versions, not the latest ones in the ranges of the wheel.
        pinned = ["--requirement", str(REPOSITORY / "requirements.txt")]
        download = [*pip, "download", "--only-binary", ":all:", "--dest", str(wheels), *pinned]
        if torch_wheel is not None:
            download.append(str(torch_wheel))
        subprocess.run([*download, "pip"], check=True, stdout=sys.stderr)
        shutil.copy(REPOSITORY / "deploy" / "offline" / "install.sh", content)
        shutil.copytree(REPOSITORY / "deploy" / "desktop", content / "desktop")
        shutil.copy(REPOSITORY / "requirements.txt", content)
        (content / "python-version").write_text(".".join(map(str, sys.version_info[:2])), encoding="utf-8")
        files = sorted(path for path in content.rglob("*") if path.is_file())
        lines = [f"{_sha256(path)}  {path.relative_to(content)}\n" for path in files]
        (content / CHECKSUMS).write_text("".join(lines), encoding="utf-8")
        archive = out / f"{name}.tar"
        # Wheels are compressed already.
        with tarfile.open(archive, "w") as tar:
            tar.add(content, name)
    (out / f"{archive.name}.sha256").write_text(f"{_sha256(archive)}  {archive.name}\n", encoding="utf-8")
    return archive


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for the archive and its checksum")
    parser.add_argument(
        "--torch-wheel", type=Path, help="a wheel of torch for the target, such as a CPU build"
    )
    arguments = parser.parse_args()
    archive = make(arguments.out, arguments.torch_wheel)
    print(f"{archive}: {archive.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
