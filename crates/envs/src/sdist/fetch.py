# Finds and gets source archives. Reads what indexes and archives say and runs nothing of it.
import base64
import hashlib
import html.parser
import json
import os
import re
import sys
import tarfile
import urllib.parse
import urllib.request
import zipfile

LARGEST_PAGE = 64 << 20
LARGEST_ARCHIVE = 256 << 20
LARGEST_PROJECT = 1 << 20


def refuse(why):
    print(why, file=sys.stderr)
    sys.exit(3)


def opened(address, accept=None):
    parts = urllib.parse.urlsplit(address)
    if parts.scheme not in ("http", "https"):
        refuse("an index links to something that is not on the web")
    host = parts.hostname or ""
    if ":" in host:
        host = "[" + host + "]"
    if parts.port:
        host += ":%d" % parts.port
    request = urllib.request.Request(urllib.parse.urlunsplit(parts._replace(netloc=host, fragment="")))
    if parts.username:
        pair = urllib.parse.unquote(parts.username) + ":" + urllib.parse.unquote(parts.password or "")
        request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(pair.encode()).decode())
    if accept:
        request.add_header("Accept", accept)
    return urllib.request.urlopen(request, timeout=30)


class Links(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "a" and attributes.get("href") and "data-yanked" not in attributes:
            self.found.append(attributes["href"])


def is_source(name):
    return name.endswith((".tar.gz", ".zip")) and "/" not in name


def listed(index, package):
    address = index.rstrip("/") + "/" + package + "/"
    accept = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
    try:
        answer = opened(address, accept)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return []
        raise
    with answer:
        body = answer.read(LARGEST_PAGE)
        base = answer.geturl()
        kind = answer.headers.get_content_type()
    if kind.endswith("json"):
        files = [file for file in json.loads(body)["files"] if not file.get("yanked")]
        pairs = [(file["filename"], file["url"], file.get("hashes", {}).get("sha256")) for file in files]
    else:
        page = Links()
        page.feed(body.decode("utf-8", "replace"))
        pairs = []
        for link in page.found:
            whole, _, fragment = link.partition("#")
            name = urllib.parse.unquote(urllib.parse.urlsplit(whole).path.rsplit("/", 1)[-1])
            digest = fragment[len("sha256="):] if fragment.startswith("sha256=") else None
            pairs.append((name, whole, digest))
    return [
        {"filename": name, "url": urllib.parse.urljoin(base, link), "sha256": digest, "index": index}
        for name, link, digest in pairs
        if is_source(name)
    ]


def in_directories(links, package):
    found = []
    for directory in links:
        for name in sorted(os.listdir(directory)):
            stem = re.sub(r"[-_.]+", "-", name).lower()
            if is_source(name) and stem.startswith(package + "-"):
                found.append({"filename": name, "url": os.path.join(directory, name), "sha256": None})
    return found


def requires(path):
    text = None
    try:
        if path.endswith(".zip"):
            with zipfile.ZipFile(path) as archive:
                for member in archive.infolist():
                    if re.fullmatch(r"[^/]+/pyproject\.toml", member.filename) and member.file_size <= LARGEST_PROJECT:
                        text = archive.read(member)
        else:
            with tarfile.open(path) as archive:
                for member in archive:
                    if re.fullmatch(r"(\./)?[^/]+/pyproject\.toml", member.name) and member.isreg():
                        if member.size <= LARGEST_PROJECT:
                            text = archive.extractfile(member).read()
                        break
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, ValueError):
        refuse("the source archive cannot be read")
    if text is None:
        return None
    try:
        import tomllib
    except ImportError:
        refuse("what the build needs is said in TOML, which this Python cannot read: 3.11 is the first that can")
    try:
        needed = tomllib.loads(text.decode("utf-8")).get("build-system", {}).get("requires")
    except (ValueError, AttributeError):
        refuse("the pyproject.toml of the sources cannot be read")
    if needed is None:
        return None
    if not isinstance(needed, list) or not all(isinstance(one, str) for one in needed):
        refuse("the pyproject.toml of the sources cannot be read")
    return needed


def get(offer, target, links):
    digest = hashlib.sha256()
    address = offer["url"]
    local = any(os.path.dirname(address) == directory.rstrip("/") for directory in links)
    index = urllib.parse.urlsplit(offer.get("index") or "")
    parts = urllib.parse.urlsplit(address)
    if index.username and not parts.username and (index.scheme, index.hostname) == (parts.scheme, parts.hostname):
        netloc = index.netloc.rpartition("@")[0] + "@" + parts.netloc
        address = urllib.parse.urlunsplit(parts._replace(netloc=netloc))
    size = 0
    with (open(address, "rb") if local else opened(address)) as source, open(target, "xb") as file:
        while piece := source.read(1 << 16):
            size += len(piece)
            if size > LARGEST_ARCHIVE:
                refuse("the source archive is too large")
            digest.update(piece)
            file.write(piece)
    found = digest.hexdigest()
    if offer.get("sha256") and offer["sha256"] != found:
        refuse("the source archive is not the one that the index names")
    return {"sha256": found, "requires": requires(target)}


with open(sys.argv[1]) as file:
    question = json.load(file)
if "list" in question:
    answer = in_directories(question["links"], question["list"])
    for index in question["indexes"]:
        if answer:
            break
        answer = listed(index, question["list"])
else:
    answer = get(question["get"], question["to"], question["links"])
print(json.dumps(answer))
