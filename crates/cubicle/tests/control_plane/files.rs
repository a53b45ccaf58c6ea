//! `cubicle cp`.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use crate::host::wait;
use crate::server::{Server, complaint};

fn text(path: &Path) -> &str {
    path.to_str().expect("a temporary directory has a plain name")
}

#[test]
fn binary_files_go_in_and_out_unchanged() {
    let Some(server) = Server::start() else { return };
    let lease = server.lease();
    let (sent, back) = (server.host.scratch().join("sent.bin"), server.host.scratch().join("back.bin"));
    let bytes: Vec<u8> = (0..5_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(&sent, &bytes).expect("scratch is writable");
    std::fs::set_permissions(&sent, std::fs::Permissions::from_mode(0o750)).expect("the file is ours");
    // A slash means a directory.
    server.says(&["cp", text(&sent), &format!("{lease}:")]);
    assert_eq!(server.says(&["exec", &lease, "--", "stat", "-c", "%a %s", "sent.bin"]), "750 5000000");
    server.says(&["cp", &format!("{lease}:/workspace/sent.bin"), text(&back)]);
    assert!(std::fs::read(&back).expect("it is here") == bytes, "the bytes changed on their way");
    assert_eq!(std::fs::metadata(&back).expect("it is here").permissions().mode() & 0o777, 0o750);
}

#[test]
fn a_directory_goes_in_and_out_with_everything_in_it() {
    let Some(server) = Server::start() else { return };
    let lease = server.lease();
    let tree = server.host.scratch().join("tree");
    std::fs::create_dir_all(tree.join("a/b")).expect("scratch is writable");
    std::fs::write(tree.join("a/one"), "one").expect("scratch is writable");
    std::fs::write(tree.join("a/b/bytes"), b"\0\xff").expect("scratch is writable");
    std::os::unix::fs::symlink("one", tree.join("a/link")).expect("scratch is writable");
    server.says(&["cp", text(&tree), &format!("{lease}:copy")]);
    assert_eq!(server.says(&["exec", &lease, "--", "cat", "copy/a/link"]), "one");
    // Into a directory that is there already.
    server.says(&["cp", text(&tree), &format!("{lease}:copy")]);
    assert_eq!(server.says(&["exec", &lease, "--", "ls", "copy"]), "a\ntree");

    let back = server.host.scratch().join("back");
    server.says(&["cp", &format!("{lease}:copy/tree"), text(&back)]);
    assert_eq!(std::fs::read(back.join("a/b/bytes")).expect("it is here"), b"\0\xff");
    assert_eq!(std::fs::read_link(back.join("a/link")).expect("it is here"), Path::new("one"));
}

#[test]
fn what_is_no_file_stays_where_it_is() {
    let Some(server) = Server::start() else { return };
    let lease = server.lease();
    server.says(&["exec", &lease, "--", "sh", "-c", "mkdir odd; mkfifo odd/pipe; echo x > odd/file"]);
    let back = server.host.scratch().join("back");
    server.says(&["cp", &format!("{lease}:odd"), text(&back)]);
    assert!(back.join("file").exists() && !back.join("pipe").exists());
}

#[test]
fn standard_streams_are_files_too() {
    let Some(server) = Server::start() else { return };
    let lease = server.lease();
    let place = format!("{lease}:note");
    let mut child = server.host.start_program(
        "sh",
        &["-c", &format!("printf 'a\\nb' | {} cp - {place}", crate::host::BINARY)],
        Stdio::null(),
    );
    assert_eq!(wait(&mut child).code(), Some(0));
    assert_eq!(server.cubicle(&["cp", &place, "-"]).stdout, b"a\nb");
}

#[test]
fn what_cannot_be_copied_is_named() {
    let Some(server) = Server::start() else { return };
    let lease = server.lease();
    let absent = server.cubicle(&["cp", &format!("{lease}:/workspace/absent"), "-"]);
    assert!(complaint(&absent).contains("/workspace/absent"), "{absent:?}");
    let here = server.cubicle(&["cp", "/nonexistent/file", &format!("{lease}:x")]);
    assert!(complaint(&here).contains("/nonexistent/file"), "{here:?}");
    let nowhere = server.cubicle(&["cp", "a", "b"]);
    assert!(complaint(&nowhere).contains("neither side"), "{nowhere:?}");
}
