use std::os::unix::fs::symlink;

use super::{KeepAlive, World};

#[test]
fn a_file_is_sent_whole_or_in_part() {
    let world = World::new();
    std::fs::write(world.host("/workspace/digits"), "0123456789").unwrap();
    let table = [
        ("", 200, "0123456789", "content-length: 10"),
        ("bytes=2-4", 206, "234", "content-range: bytes 2-4/10"),
        ("bytes=-3", 206, "789", "content-range: bytes 7-9/10"),
        ("bytes=8-99", 206, "89", "content-range: bytes 8-9/10"),
        ("bytes=0-1,3-4", 200, "0123456789", "content-length: 10"),
    ];
    for (range, status, body, header) in table {
        let headers = [("Range", range)];
        let answer = world.ask("GET", "/files/digits", &headers, b"");
        assert_eq!((answer.status, answer.body.as_slice()), (status, body.as_bytes()), "{range}");
        assert!(answer.head.contains(header), "{range}: {}", answer.head);
        let head = world.ask("HEAD", "/files/digits", &headers, b"");
        assert_eq!((head.status, head.body.as_slice()), (status, &b""[..]), "{range}");
        assert_eq!(head.head, answer.head);
    }
    let beyond = world.ask("GET", "/files/digits", &[("range", "bytes=10-")], b"");
    assert_eq!((beyond.status, beyond.code().as_str()), (416, "range_not_satisfiable"));
    assert!(beyond.head.contains("content-range: bytes */10"), "{}", beyond.head);
    assert_eq!(beyond.keep_alive, Some(KeepAlive::Yes));
}

#[test]
fn a_head_request_for_nothing_has_no_body() {
    let answer = World::new().ask("HEAD", "/files/nothing", &[], b"");
    assert_eq!(answer.status, 404);
    assert!(answer.body.is_empty());
    assert!(answer.head.contains("x-cubicle-error: not_found"), "{}", answer.head);
}

#[test]
fn the_tag_tells_versions_apart() {
    let world = World::new();
    let tag = |world: &World| {
        let head = world.get("/files/a").head;
        let line = head.lines().find_map(|line| line.strip_prefix("etag: "));
        line.unwrap().to_owned()
    };
    world.put("/files/a", b"one");
    let first = tag(&world);
    assert_eq!(tag(&world), first);
    assert_eq!(world.ask("GET", "/files/a", &[("if-none-match", &first)], b"").status, 304);
    world.put("/files/a", b"two");
    assert_ne!(tag(&world), first);
    assert_eq!(world.ask("GET", "/files/a", &[("if-none-match", &first)], b"").body, b"two");
    let stale = [("if-range", first.as_str()), ("range", "bytes=1-")];
    assert_eq!(world.ask("GET", "/files/a", &stale, b"").body, b"two");
}

#[test]
fn a_big_file_is_sent_unchanged() {
    let world = World::new();
    let contents: Vec<u8> = (0..5_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    assert_eq!(world.put("/files/big", &contents).status, 201);
    assert_eq!(world.get("/files/big").body, contents);
}

#[test]
fn a_listing_is_sorted_and_says_what_everything_is() {
    let world = World::new();
    world.put("/files/b.txt?mode=0600", b"12345");
    world.put("/files/a/deep?parents=true", b"1");
    symlink("b.txt", world.host("/workspace/link")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, world.host("/workspace/pipe"), rustix::fs::Mode::RWXU).unwrap();
    let flat = world.get("/files?list=/workspace").json();
    let seen: Vec<_> = flat["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| (e["name"].as_str(), e["type"].as_str()))
        .collect();
    let expected = [("a", "directory"), ("b.txt", "file"), ("link", "symlink"), ("pipe", "other")];
    assert_eq!(seen, expected.map(|(name, kind)| (Some(name), Some(kind))));
    assert_eq!(flat["truncated"], false);
    assert_eq!(flat["entries"][1]["size"], 5);
    assert_eq!(flat["entries"][1]["mode"], "0600");
    assert_eq!(flat["entries"][2]["target"], "b.txt");
    let deep = world.get("/files?list=.&recursive=true").json();
    let paths: Vec<_> =
        deep["entries"].as_array().unwrap().iter().map(|e| e["name"].as_str().unwrap()).collect();
    assert_eq!(paths, ["a", "deep", "b.txt", "link", "pipe"]);
    assert_eq!(world.get("/files?list=b.txt").code(), "not_a_directory");
    assert_eq!(world.get("/files?list=none").code(), "not_found");
}

#[test]
fn a_listing_of_everything_leaves_out_what_is_not_for_files() {
    let world = World::new();
    let answer = world.get("/files?list=/&recursive=true").json();
    let text = answer.to_string();
    assert!(text.contains("\"/proc\""), "{text}");
    assert!(!text.contains("environ") && !text.contains("/dev/disk"), "{text}");
}

#[test]
fn a_listing_of_too_much_says_that_it_is_cut() {
    let world = World::new();
    for number in 0..10_001 {
        std::fs::write(world.host(&format!("/workspace/{number:05}")), "").unwrap();
    }
    let answer = world.get("/files?list=/workspace").json();
    assert_eq!(answer["truncated"], true);
    assert_eq!(answer["entries"].as_array().unwrap().len(), 10_000);
    assert_eq!(answer["entries"][9_999]["name"], "09999");
}

#[test]
fn a_name_that_is_not_text_can_still_be_asked_for() {
    use std::os::unix::ffi::OsStrExt;
    let world = World::new();
    let name = std::ffi::OsStr::from_bytes(b"a\xff b");
    std::fs::write(world.host("/workspace").join(name), "odd").unwrap();
    let listed = world.get("/files?list=/workspace").json();
    let encoded = listed["entries"][0]["path_encoded"].as_str().unwrap().to_owned();
    assert_eq!(encoded, "/workspace/a%FF%20b");
    assert_eq!(world.get(&format!("/files/{encoded}")).body, b"odd");
}

#[test]
fn stat_describes_a_link_itself() {
    let world = World::new();
    symlink("/nowhere", world.host("/workspace/link")).unwrap();
    let link = world.get("/files?stat=link").json();
    assert_eq!((link["type"].as_str(), link["target"].as_str()), (Some("symlink"), Some("/nowhere")));
    assert_eq!(world.get("/files?stat=/").json()["type"], "directory");
    assert_eq!(world.get("/files?stat=/workspace/..").json()["type"], "directory");
    assert_eq!(world.get("/files?stat=none").code(), "not_found");
}

#[test]
fn a_question_that_makes_no_sense_is_refused() {
    let world = World::new();
    let table = [
        ("GET", "/files", 400),
        ("GET", "/files?list=/&stat=/", 400),
        ("POST", "/files", 400),
        ("POST", "/files?move=a", 400),
        ("PATCH", "/files/a", 405),
        ("DELETE", "/files?list=a", 405),
        ("DELETE", "/archive", 405),
        ("GET", "/archive", 400),
        ("POST", "/watch?path=a", 405),
        ("GET", "/files?list=/workspace&recursive=perhaps", 400),
    ];
    for (method, target, status) in table {
        assert_eq!(world.ask(method, target, &[], b"").status, status, "{method} {target}");
    }
}
