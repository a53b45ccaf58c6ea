//! TCP into a sandbox: HTTP to its ports, preview links, terminals.

use serde_json::json;

use crate::client::{Server, With, eventually};

const WEB: &str = "import http.server, os\nos.chdir('/workspace')\nhttp.server.HTTPServer(('127.0.0.1', 8000), http.server.SimpleHTTPRequestHandler).serve_forever()";

fn served(server: &Server) -> String {
    let (_, sandbox) = server.lease(&json!({ "files": [{ "path": "index.html", "content": "<p>inside</p>" }, { "path": "web.py", "content": WEB }] }));
    let asked = json!({ "command": ["python3", "web.py"], "background": true });
    server.post(&format!("/api/v1/sandboxes/{sandbox}/execs"), &asked).ok();
    sandbox
}

#[test]
fn a_port_is_reached_with_a_key_and_by_a_signed_link() {
    let Some(server) = Server::start() else { return };
    let sandbox = served(&server);
    let port = format!("/api/v1/sandboxes/{sandbox}/ports/8000/");
    let page =
        eventually("a web server in a sandbox", || Some(server.get(&port)).filter(|page| page.status == 200));
    assert_eq!(page.text, "<p>inside</p>");
    assert!(page.header("content-security-policy").contains("sandbox"), "{page:?}");
    let nobody = server.get(&format!("/api/v1/sandboxes/{sandbox}/ports/9999/"));
    assert_eq!(nobody.refused(502), "unavailable");

    let link = server.post(&format!("/api/v1/sandboxes/{sandbox}/previews/8000?seconds=60"), &json!({})).ok();
    let url = link["url"].as_str().expect("a link has an address");
    let path = url.strip_prefix(&server.address).expect("it is of this server");
    let keyless = With { key: Some(""), headers: &[] };
    assert_eq!(server.request("GET", &format!("{path}index.html"), b"", &keyless).text, "<p>inside</p>");
    let forged = path.replace(".8000.", ".22.");
    assert_eq!(server.request("GET", &forged, b"", &keyless).refused(401), "unauthenticated");
    let cut = path.trim_end_matches('/');
    assert_eq!(
        server.request("GET", &format!("{}/", &cut[..cut.len() - 1]), b"", &keyless).refused(401),
        "unauthenticated"
    );
    let other = server.key_of("elsewhere", "eve", &["read", "run"]);
    assert_eq!(
        server.request("GET", &port, b"", &With { key: Some(&other), headers: &[] }).refused(404),
        "not_found"
    );
}

#[test]
fn the_key_of_a_caller_does_not_reach_what_runs_inside() {
    let Some(server) = Server::start() else { return };
    let echo = "import http.server\nclass E(http.server.BaseHTTPRequestHandler):\n  def do_GET(s):\n    b=str(s.headers).encode(); s.send_response(200); s.send_header('content-length', str(len(b))); s.end_headers(); s.wfile.write(b)\nhttp.server.HTTPServer(('127.0.0.1', 8001), E).serve_forever()";
    let (_, sandbox) = server.lease(&json!({ "files": [{ "path": "echo.py", "content": echo }] }));
    let asked = json!({ "command": ["python3", "echo.py"], "background": true });
    server.post(&format!("/api/v1/sandboxes/{sandbox}/execs"), &asked).ok();
    let path = format!("/api/v1/sandboxes/{sandbox}/ports/8001/");
    let seen = eventually("an echo server", || Some(server.get(&path)).filter(|page| page.status == 200));
    assert!(!seen.text.contains(&server.admin_key()), "{seen:?}");
    assert!(seen.text.to_lowercase().contains("host: localhost"), "{seen:?}");
}
