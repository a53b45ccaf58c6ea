//! Requests that say one thing to the gateway and another to the server.

use crate::inside::Attack;
use crate::world::in_a_world;

#[test]
fn a_request_has_one_meaning_and_goes_where_the_policy_lets_it() {
    in_a_world(|world| {
        let page = |_: &crate::origin::Request| {
            crate::origin::answer("200 OK", "", format!("{} secret", crate::origin::REACHED))
        };
        world.outside.page("/private/x", page);
        let policy = "allow origin.test; deny old.origin.test; allow GET http://other.test/public/**";
        world.sandbox(policy).withstands(&ATTACKS);
    });
}

const ATTACKS: [Attack; 20] = [
    Attack {
        name: "a_user_name_in_a_url_hides_no_host",
        program: r#"
get("http://origin.test@evil.test/ATTACK", host="evil.test")
get("http://origin.test@evil.test/ATTACK", host="origin.test")
get("http://origin.test:80@evil.test/ATTACK", host="origin.test")
get("http://evil.test#@origin.test/ATTACK", host="origin.test")
"#,
        denied: "user name in URL",
    },
    Attack {
        name: "slashes_and_backslashes_hide_no_host",
        program: r#"
for url in ("http:///evil.test/ATTACK", "http:/evil.test/ATTACK", "http:\\\\evil.test\\ATTACK", "http://origin.test\\@evil.test/ATTACK",
            "http://evil.test\\.origin.test/ATTACK", "//evil.test/ATTACK", "http://origin.test\t.evil.test/ATTACK"):
    for host in ("origin.test", "evil.test"):
        get(url, host=host)
"#,
        denied: "",
    },
    Attack {
        name: "capitals_and_dots_do_not_make_another_host",
        program: r#"
for host in ("OLD.ORIGIN.TEST", "old.origin.test.", "Old.Origin.Test.:80", "EVIL.test", "evil.test."):
    get(f"http://{host}/ATTACK")
    through(tunnel(host if ":" in host else host + ":80"), "GET /ATTACK HTTP/1.0\r\n\r\n")
"#,
        denied: "old.origin.test",
    },
    Attack {
        name: "an_encoded_host_is_no_host",
        program: r#"
for url in ("http://%65vil.test/ATTACK", "http://evil%2etest/ATTACK", "http://origin.test%2f@evil.test/ATTACK",
            "http://origin.test%00.evil.test/ATTACK", "http://\xefvil.test/ATTACK", "http://evil.test\xe3\x80\x82/ATTACK"):
    get(url, host="origin.test")
    get(url)
"#,
        denied: "",
    },
    Attack {
        name: "other_schemes_are_not_fetched",
        program: r#"
for url in ("https://evil.test/ATTACK", "https://origin.test/ATTACK", "ftp://origin.test/ATTACK", "file:///etc/passwd",
            "gopher://evil.test/ATTACK", "HTTP://evil.test/ATTACK", "ws://origin.test/ATTACK", "*", "evil.test:80"):
    get(url, host="origin.test")
"#,
        denied: "https without CONNECT",
    },
    Attack {
        name: "the_host_header_cannot_name_another_host_than_the_url",
        program: r#"
get("http://origin.test/ATTACK", host="evil.test")
get("http://origin.test/ATTACK", host="origin.test:81")
get("http://origin.test/ATTACK", more="Host: evil.test\r\n")
get("http://origin.test/ATTACK", host="origin.test, evil.test")
get("http://evil.test/ATTACK", host="origin.test")
show(talk("GET /ATTACK HTTP/1.1\r\nHost: origin.test\r\nX-Forwarded-Host: evil.test\r\nConnection: close\r\n\r\n"))
"#,
        denied: "Host header mismatch",
    },
    Attack {
        name: "a_length_and_chunks_together_hide_no_request",
        program: r#"
smuggled = "GET /ATTACK HTTP/1.1\r\nHost: origin.test\r\n\r\n"
for first, body in (("Content-Length: 6\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n" + smuggled),
                    ("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", "5c\r\n" + smuggled + "\r\n0\r\n\r\n")):
    show(talk(f"POST http://origin.test/x HTTP/1.1\r\nHost: origin.test\r\n{first}\r\n{body}"))
"#,
        denied: "ambiguous framing",
    },
    Attack {
        name: "two_lengths_hide_no_request",
        program: r#"
smuggled = "GET /ATTACK HTTP/1.1\r\nHost: origin.test\r\n\r\n"
for lengths in ("Content-Length: 0\r\nContent-Length: 50\r\n", "Content-Length: 0, 50\r\n", "Content-Length: +0\r\n",
                "Content-Length: 0x32\r\n", "Content-Length : 50\r\n", "Content-Length:\x0b50\r\n"):
    show(talk(f"POST http://origin.test/x HTTP/1.1\r\nHost: origin.test\r\n{lengths}\r\n{smuggled}"))
"#,
        denied: "malformed",
    },
    Attack {
        name: "another_spelling_of_chunked_hides_no_request",
        program: r#"
smuggled = "0\r\n\r\nGET /ATTACK HTTP/1.1\r\nHost: origin.test\r\n\r\n"
for encoding in ("Transfer-Encoding: xchunked", "Transfer-Encoding: identity, chunked", "Transfer-Encoding: chunked, chunked",
                 "Transfer-Encoding: gzip, chunked", "Transfer-Encoding : chunked", "Transfer-Encoding:\x0bchunked",
                 "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", "Transfer_Encoding: chunked\r\nContent-Length: 3000000000000000000000"):
    show(talk(f"POST http://origin.test/x HTTP/1.1\r\nHost: origin.test\r\n{encoding}\r\n\r\n{smuggled}"))
"#,
        denied: "ambiguous framing",
    },
    Attack {
        name: "chunks_without_a_clear_size_hide_no_request",
        program: r#"
smuggled = "GET /ATTACK HTTP/1.1\r\nHost: origin.test\r\n\r\n"
head = "POST http://origin.test/x HTTP/1.1\r\nHost: origin.test\r\nTransfer-Encoding: chunked\r\n\r\n"
for chunks in ("0x5\r\n12345\r\n", "+5\r\n12345\r\n", "5 \n12345\r\n", "fffffffffffffffff\r\n", "-1\r\n", "5\r\n123456\r\n", "\r\n", "5;a\n12345\r\n",
               "0\r\nX: y\n\r\n"):
    show(talk(head + chunks + "0\r\n\r\n" + smuggled))
"#,
        denied: "",
    },
    Attack {
        name: "extensions_of_chunks_are_not_passed_on",
        program: r#"
body = "5;note=ATTACK\r\n12345\r\n0;ATTACK\r\nX-Trailer: ATTACK\r\n\r\n"
answer = talk("POST http://origin.test/echo HTTP/1.1\r\nHost: origin.test\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
print("12345 came" if "12345" in answer else answer)
"#,
        denied: "",
    },
    Attack {
        name: "a_folded_header_is_refused",
        program: r#"
show(talk("GET http://origin.test/ATTACK HTTP/1.1\r\nHost: origin.test\r\nX-Long: a\r\n Transfer-Encoding: chunked\r\n\r\n"))
show(talk("GET http://origin.test/ATTACK HTTP/1.1\r\nHost:\r\n evil.test\r\n\r\n"))
show(talk("GET http://origin.test/ATTACK HTTP/1.1\r\n Host: evil.test\r\nHost: origin.test\r\n\r\n"))
"#,
        denied: "malformed",
    },
    Attack {
        name: "no_header_can_be_injected_by_control_characters",
        program: r#"
for value in ("a\rX-ATTACK: 1", "a\nX-ATTACK: 1", "a\0X-ATTACK: 1", "a\r\r\nX-ATTACK: 1"):
    answer = talk(f"GET http://origin.test/echo HTTP/1.1\r\nHost: origin.test\r\nConnection: close\r\nX-Value: {value}\r\n\r\n")
    lines = [line.strip().lower() for line in answer.splitlines()]
    print("REACHED" if "x-attack: 1" in lines else answer.split("\r\n")[0])
for line in ("GET http://origin.test/\rX-ATTACK:1 HTTP/1.1", "GET http://origin.test/x HTTP/1.1\r\nX Y: ATTACK", "G\x01T http://origin.test/ATTACK HTTP/1.1"):
    show(talk(f"{line}\r\nHost: origin.test\r\nConnection: close\r\n\r\n"))
"#,
        denied: "malformed",
    },
    Attack {
        name: "lines_that_end_with_a_line_feed_alone_are_refused",
        program: r#"
show(talk("GET http://origin.test/ATTACK HTTP/1.1\nHost: origin.test\nConnection: close\n\n"))
show(talk("GET http://origin.test/ATTACK HTTP/1.1\r\nHost: origin.test\r\nX: y\nContent-Length: 5\r\n\r\n"))
"#,
        denied: "ambiguous framing",
    },
    Attack {
        name: "a_request_behind_another_is_looked_at_as_the_first",
        program: r#"
answer = talk("GET http://origin.test/first HTTP/1.1\r\nHost: origin.test\r\n\r\n"
              "GET http://evil.test/ATTACK HTTP/1.1\r\nHost: evil.test\r\nConnection: close\r\n\r\n")
show(answer.replace("REACHED GET /first", "the first"))
"#,
        denied: "evil.test:80",
    },
    Attack {
        name: "a_redirect_to_the_metadata_is_not_followed",
        program: r#"
import urllib.request
assert "location: http://169.254.169.254/x" in get("http://origin.test/redirect?http://169.254.169.254/x").lower()
for place in ("http://169.254.169.254/latest/meta-data/", "http://[fd00:ec2::254]/", "http://metadata.test/", "http://10.1.2.3/", "http://evil.test/"):
    try:
        show(urllib.request.urlopen(f"http://origin.test/redirect?{place}", timeout=20).read().decode())
    except OSError as error:
        print(error)
"#,
        denied: "169.254.169.254:80",
    },
    Attack {
        name: "a_redirect_to_the_control_plane_is_not_followed",
        program: r#"
import urllib.request
os.environ["no_proxy"] = os.environ["NO_PROXY"] = ""
for place in ("http://127.0.0.1:$API/api/v1/leases", "http://localhost:$API/", "http://[::1]:9000/", "http://0.0.0.0:9000/"):
    try:
        show(urllib.request.urlopen(f"http://origin.test/redirect?{place}", timeout=20).read().decode())
    except OSError as error:
        print(error)
"#,
        denied: "127.0.0.1:$API",
    },
    Attack {
        name: "a_request_that_comes_back_to_the_gateway_ends_there",
        program: r#"
via = talk("GET http://origin.test/echo HTTP/1.1\r\nHost: origin.test\r\nConnection: close\r\n\r\n")
mark = [line for line in via.splitlines() if line.lower().startswith("via:")][0]
print(mark)
get("http://origin.test/ATTACK", more=f"{mark}\r\n")
get("http://origin.test/ATTACK", more=f"Via: 1.0 somebody, {mark[4:].strip()}, 1.1 another\r\n")
"#,
        denied: "loop",
    },
    Attack {
        name: "a_path_that_servers_read_in_two_ways_is_refused_where_paths_count",
        program: r#"
for path in ("/private/x", "/public/../private/x", "/public/%2e%2e/private/x", "/public//../private/x", "/public/..%2fprivate/x",
             "/public\\..\\private/x", "/public/./../private/x", "/PUBLIC/../private/x", "/public/%252e%252e/private/x", "/public/;/../private/x",
             "//private/x", "/public%2f..%2f/private/x"):
    get(f"http://other.test{path}", host="other.test")
"#,
        denied: "other.test:80",
    },
    Attack {
        name: "a_method_that_is_not_allowed_has_no_other_name",
        program: r#"
for method in ("POST", "PUT", "get", "GET\t", "PATCH", "ATTACK", "TRACE"):
    get("http://other.test/public/x", method=method)
show(talk("POST http://other.test/public/x HTTP/1.1\r\nHost: other.test\r\nX-HTTP-Method-Override: GET\r\nContent-Length: 6\r\n\r\nATTACK"))
"#,
        denied: "other.test:80",
    },
];
