//! Files of a sandbox over HTTP.

use serde_json::{Value, json};

use crate::client::{Server, With};

#[test]
fn files_are_written_read_moved_listed_and_removed() {
    let Some(server) = Server::start() else { return };
    let (_, sandbox) = server.lease(&json!({}));
    let at = |rest: &str| format!("/api/v1/sandboxes/{sandbox}/files{rest}");
    let put = |rest: &str, bytes: &[u8]| server.request("PUT", &at(rest), bytes, &With::default());
    let entry = put("?path=deep/er/a.txt&mode=0750", b"0123456789").ok();
    assert_eq!(
        (&entry["size"], &entry["mode"], &entry["type"]),
        (&json!(10), &json!("0750"), &json!("file"))
    );
    assert_eq!(server.get(&at("?path=/workspace/deep/er/a.txt")).text, "0123456789");
    let part = server.request(
        "GET",
        &at("?path=deep/er/a.txt"),
        b"",
        &With { headers: &[("range", "bytes=2-4")], ..With::default() },
    );
    assert_eq!((part.status, part.text.as_str(), part.header("content-range")), (206, "234", "bytes 2-4/10"));
    let outside = server.request(
        "GET",
        &at("?path=deep/er/a.txt"),
        b"",
        &With { headers: &[("range", "bytes=10-")], ..With::default() },
    );
    assert_eq!(outside.refused(416), "invalid");
    assert_eq!(put("?path=deep/er/a.txt&must_be_new=true", b"x").refused(409), "conflict");

    let moved = server.post(&at("/move"), &json!({ "from": "deep/er/a.txt", "to": "b.txt" }));
    assert_eq!(moved.status, 204, "{moved:?}");
    let listing = server.get(&at("/list?path=/workspace")).ok();
    let names: Vec<&Value> =
        listing["entries"].as_array().expect("entries").iter().map(|entry| &entry["name"]).collect();
    assert!(names.contains(&&json!("b.txt")) && names.contains(&&json!("deep")), "{names:?}");
    assert_eq!(
        server.request("POST", &at("/directories?path=made/of/parts"), b"", &With::default()).status,
        204
    );
    assert_eq!(server.get(&at("/stat?path=made/of/parts")).ok()["type"], "directory");
    assert_eq!(
        server.delete(&at("?path=deep")).status / 100,
        4,
        "a full directory was removed without being told so"
    );
    assert_eq!(server.delete(&at("?path=deep&recursive=true")).status, 204);
    assert_eq!(server.get(&at("?path=deep/er/a.txt")).refused(404), "not_found");

    let audit = server.get("/api/v1/audit?action=file.write&limit=10").ok();
    let details: Vec<&Value> =
        audit["items"].as_array().expect("items").iter().map(|entry| &entry["detail"]).collect();
    assert!(details.contains(&&json!("deep/er/a.txt")), "{audit}");
}

#[test]
fn archives_go_in_and_come_out_whole() {
    let Some(server) = Server::start() else { return };
    let (_, sandbox) = server.lease(&json!({}));
    server.prints(&sandbox, "mkdir -p tree/sub; head -c 300000 /dev/urandom > tree/sub/big; echo x > tree/small; cd tree; find . -type f | sort | xargs sha256sum > /tmp/sums");
    let packed = server.stream(&format!("/api/v1/sandboxes/{sandbox}/files/archive?path=tree"), &[]);
    let mut archive = Vec::new();
    std::io::Read::read_to_end(&mut { packed }, &mut archive).expect("the archive ends");
    let path = format!("/api/v1/sandboxes/{sandbox}/files/archive?path=copy");
    server.request(
        "POST",
        &format!("/api/v1/sandboxes/{sandbox}/files/directories?path=copy"),
        b"",
        &With::default(),
    );
    let unpacked = server.request("PUT", &path, &archive, &With::default()).ok();
    assert_eq!(unpacked["files"], 2, "{unpacked}");
    server
        .prints(&sandbox, "cd copy && cd \"$(dirname \"$(find . -name small)\")\" && sha256sum -c /tmp/sums");
    let nonsense = server.request("PUT", &path, b"this is not a tar archive, not at all", &With::default());
    assert!((400..500).contains(&nonsense.status), "{nonsense:?}");
}

#[test]
fn no_path_leaves_the_sandbox() {
    let Some(server) = Server::start() else { return };
    let (_, sandbox) = server.lease(&json!({}));
    server.prints(&sandbox, "ln -s /proc/1/root/etc/hostname link; true");
    let secret = server.host.scratch().join("secret");
    std::fs::write(&secret, "of the host").expect("the scratch directory is ours");
    for path in [
        secret.to_str().expect("a plain path"),
        "../../../../../../tmp/../etc/shadow",
        "/proc/1/root/etc/shadow",
        "link",
    ] {
        let read = server.get(&format!("/api/v1/sandboxes/{sandbox}/files?path={path}"));
        assert!(read.status >= 400, "{path}: {read:?}");
        assert!(!read.text.contains("of the host") && !read.text.contains("root:"), "{path}: {read:?}");
    }
}

#[test]
fn a_large_file_is_streamed() {
    let Some(server) = Server::start() else { return };
    let (_, sandbox) = server.lease(&json!({}));
    let big: Vec<u8> = (0..40_000_000u32).map(|number| (number % 251) as u8).collect();
    let path = format!("/api/v1/sandboxes/{sandbox}/files?path=big");
    assert_eq!(server.request("PUT", &path, &big, &With::default()).ok()["size"], big.len());
    let mut back = Vec::new();
    std::io::Read::read_to_end(&mut server.stream(&path, &[]), &mut back).expect("the file ends");
    assert!(back == big, "what came back is not what was written");
}
