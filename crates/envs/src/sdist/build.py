# Builds one wheel from a source archive, by the hooks of PEP 517. Everything that the build needs is in the environment of
# the interpreter that runs this; there is no network.
import importlib
import os
import sys
import tarfile
import tempfile
import zipfile

archive, output = sys.argv[1], os.path.abspath(sys.argv[2])
place = tempfile.mkdtemp()
if archive.endswith(".zip"):
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(place)
else:
    with tarfile.open(archive) as opened:
        if hasattr(tarfile, "data_filter"):
            opened.extractall(place, filter="data")
        else:
            opened.extractall(place)
inner = [os.path.join(place, name) for name in os.listdir(place)]
source = inner[0] if len(inner) == 1 and os.path.isdir(inner[0]) else place
os.chdir(source)

system = {}
if os.path.exists("pyproject.toml"):
    try:
        import tomllib
    except ImportError:
        import tomli as tomllib
    with open("pyproject.toml", "rb") as file:
        system = tomllib.load(file).get("build-system", {})
backend = system.get("build-backend", "setuptools.build_meta:__legacy__")
for path in reversed(system.get("backend-path", [])):
    sys.path.insert(0, os.path.abspath(path))
module, _, attribute = backend.partition(":")
hooks = importlib.import_module(module)
for name in filter(None, attribute.split(".")):
    hooks = getattr(hooks, name)
os.makedirs(output, exist_ok=True)
print(hooks.build_wheel(output))
