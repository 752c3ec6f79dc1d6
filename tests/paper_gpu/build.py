"""Build the paper GPU's libraries with the headers in torch's CUDA wheel.

    python -m tests.paper_gpu.build FOLDER      # with the Python that has this torch

The folder then contains `libpaper_cuda.so` (cudart, cuBLAS and NCCL, for LD_PRELOAD), `libpaper_torch.so`
(computes torch's CUDA operators on the CPU), and `driver/` and `driver_before_510/` with libcuda and NVML.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

SOURCES = Path(__file__).parent / "cpp"
# The libraries whose functions torch finds in libpaper_cuda.so first.
REPLACED = ("libcudart.so", "libcublas.so", "libcublasLt.so", "libnccl.so")
RUNTIME = ("runtime", "memory", "cublas", "nccl")
# Functions of cuBLAS that prepare a computation or release a resource: no launch.
PREPARING = re.compile(
    r"cublas(Lt)?(Create|Destroy|Set|Get|MatmulDesc|MatrixLayout|MatmulPreference|MatmulAlgo)"
)
# NVIDIA's headers of 16-bit numbers need libcu++, which none of torch's packages contains; they are not used.
WITHOUT_HALF = ("-D__CUDA_FP16_H__", "-D__CUDA_BF16_H__", "-D__CUDA_FP8_H__")


def build(folder: Path) -> None:
    """Build the libraries that are missing or were built from other sources or for another torch."""
    for name in ("driver", "driver_before_510", "objects"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Only this library is compiled against torch's headers, which takes most of the time.
        _unless_built(folder / "libpaper_torch.so", ["dispatch"], _build_dispatch)
        _unless_built(folder / "libpaper_cuda.so", RUNTIME, _build_runtime)
        for name, options in {"driver": [], "driver_before_510": ["-DBEFORE_510"]}.items():
            for source, library in {"driver": "libcuda.so.1", "nvml": "libnvidia-ml.so.1"}.items():
                shared = ["-shared", "-fvisibility=hidden", f"-Wl,-soname,{library}", *options]
                _unless_built(
                    folder / name / library,
                    [source],
                    lambda target, source=source, shared=shared: _compile(source, target, shared),
                )
            # Triton links its launcher with -lcuda.
            link = folder / name / "libcuda.so"
            if not link.is_symlink():
                link.symlink_to("libcuda.so.1")


def _unless_built(target: Path, sources: Sequence[str], make: Callable[[Path], object]) -> None:
    """Build a target unless it exists and its stamp is the hash of its sources, of this file and of torch."""
    content = hashlib.sha256(f"torch {version('torch')}".encode())
    headers = sorted(SOURCES.glob("*.h"))
    for path in [Path(__file__), *headers, *(SOURCES / f"{name}.cpp" for name in sources)]:
        content.update(path.read_bytes())
    stamp = target.with_name(f"{target.name}.stamp")
    if target.exists() and stamp.exists() and stamp.read_text() == content.hexdigest():
        return
    print(f"building {target}", file=sys.stderr, flush=True)
    make(target)
    stamp.write_text(content.hexdigest())


def _build_dispatch(target: Path) -> None:
    torch = _site_packages() / "torch"
    libraries = [f"-L{torch / 'lib'}", "-lc10", "-lc10_cuda", "-ltorch_cpu"]
    _compile("dispatch", target, ["-shared", f"-isystem{torch / 'include'}"], libraries)


def _build_runtime(target: Path) -> None:
    objects = [target.parent / "objects" / f"{name}.o" for name in RUNTIME]
    for name, path in zip(RUNTIME, objects, strict=True):
        _compile(name, path, ["-c"])
    rest = target.parent / "objects" / "rest.c"
    rest.write_text("\n".join(_rest_of_functions(objects)))
    command = ["g++", "-O1", "-shared", "-fPIC", *map(str, objects), "-x", "c", str(rest)]
    _run([*command, "-o", str(target), "-lpthread", "-lrt", "-ldl"])


def _site_packages() -> Path:
    return Path(sysconfig.get_paths()["purelib"])


def _includes() -> list[str]:
    site = _site_packages()
    toolkits = sorted((site / "nvidia").glob("cu*/include"))
    # crt/host_defines.h is only in Triton's package, in none of NVIDIA's packages that torch requires.
    folders = [*toolkits, site / "nvidia/nccl/include", site / "triton/backends/nvidia/include"]
    for folder in folders:
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder} is missing: is this torch a CUDA build?")
    return [f"-I{folder}" for folder in folders]


def _compile(name: str, target: Path, options: Sequence[str], libraries: Sequence[str] = ()) -> None:
    common = ["-std=c++20", "-O1", "-fPIC", "-Wall", "-Wno-unknown-pragmas", *WITHOUT_HALF, *_includes()]
    _run(["g++", *common, *options, str(SOURCES / f"{name}.cpp"), "-o", str(target), *libraries])


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:1])} failed for {command[-1]}:\n{done.stderr[-6000:]}")
    return done.stdout


def _symbols(path: Path, kind: str) -> set[str]:
    """Return the dynamic symbols of a library, or all of an object file; `kind` is an option of nm."""
    dynamic = [] if path.suffix == ".o" else ["-D"]
    lines = _run(["nm", *dynamic, kind, str(path)]).splitlines()
    return {line.split()[-1].split("@")[0] for line in lines if line.strip()}


def _rest_of_functions(objects: Sequence[Path]) -> list[str]:
    """Return C code of the functions of the replaced libraries that torch needs and cpp/ lacks.

    Those of cuBLAS succeed, and count a launch if they compute. The remaining ones report that they are not
    simulated.
    """
    site = _site_packages()
    written = set().union(*(_symbols(path, "--defined-only") for path in objects))
    needed: set[str] = set()
    for path in (site / "torch/lib").glob("*.so"):
        needed |= _symbols(path, "--undefined-only")
    lines = ["#include <stdio.h>", "int paper_library_call(void);"]
    for library in sorted((site / "nvidia").glob("*/lib/*.so*")):
        if not library.name.startswith(tuple(f"{name}." for name in REPLACED)):
            continue
        # cudaErrorNotSupported, ncclInvalidUsage
        error = 801 if library.name.startswith("libcudart") else 5
        for name in sorted(needed & _symbols(library, "--defined-only") - written):
            if name.startswith("cublas"):
                body = "return 0;" if PREPARING.match(name) else "return paper_library_call();"
            else:
                body = f'fprintf(stderr, "paper GPU: {name} is not simulated\\n"); return {error};'
            lines.append(f"int {name}() {{ {body} }}")
            written.add(name)
    return [*lines, ""]


if __name__ == "__main__":
    build(Path(sys.argv[1]).resolve())
