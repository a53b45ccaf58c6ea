# Makes the trees of three small package indexes below the directory that is its argument.
import base64, hashlib, io, json, os, sys, tarfile, zipfile

top = sys.argv[1]


def write(path, data):
    path = os.path.join(top, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data if isinstance(data, bytes) else data.encode())


def zipped(files):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return made.getvalue()


# Python: a wheel, and the page that leads to it.
info = "sample_package-1.0.dist-info"
wheel = zipped({
    "sample_package.py": "WORD = 'installed through the gateway'\n",
    f"{info}/METADATA": "Metadata-Version: 2.1\nName: sample-package\nVersion: 1.0\n",
    f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    f"{info}/RECORD": f"sample_package.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n",
})
name = "sample_package-1.0-py3-none-any.whl"
write(f"python/files/{name}", wheel)
digest = hashlib.sha256(wheel).hexdigest()
write("python/simple/sample-package/index.html", f'<!DOCTYPE html><a href="../../files/{name}#sha256={digest}">{name}</a>')

# npm: a tarball, and the document that describes it.
made = io.BytesIO()
with tarfile.open(fileobj=made, mode="w:gz") as archive:
    for path, text in {"package.json": json.dumps({"name": "sample-package", "version": "1.0.0", "main": "index.js"}),
                       "index.js": "module.exports = 'installed through the gateway';\n"}.items():
        entry = tarfile.TarInfo(f"package/{path}")
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text.encode()))
tarball = made.getvalue()
write("npm/sample-package/-/sample-package-1.0.0.tgz", tarball)
version = {"name": "sample-package", "version": "1.0.0", "main": "index.js", "dist": {
    "tarball": "https://index.test/npm/sample-package/-/sample-package-1.0.0.tgz",
    "integrity": "sha512-" + base64.b64encode(hashlib.sha512(tarball).digest()).decode(),
}}
write("npm/sample-package/index.json", json.dumps({
    "name": "sample-package", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}))

# Go: a module, as a module proxy has it.
module = "module index.test/sample\n\ngo 1.20\n"
write("go/index.test/sample/@v/list", "v1.0.0\n")
write("go/index.test/sample/@v/v1.0.0.info", json.dumps({"Version": "v1.0.0", "Time": "2025-01-01T00:00:00Z"}))
write("go/index.test/sample/@v/v1.0.0.mod", module)
write("go/index.test/sample/@v/v1.0.0.zip", zipped({
    "index.test/sample@v1.0.0/go.mod": module,
    "index.test/sample@v1.0.0/sample.go": "package sample\n\nconst Word = \"installed through the gateway\"\n",
}))
