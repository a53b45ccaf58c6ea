//! What the fuzz targets do with their input. The fuzzer and the plain test `fuzz_smoke` share it.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cubicle_guest::client::decode_for_fuzzing;
use cubicle_guest::daemon::{decode_context_event, files, http, spec};
use cubicle_guest::hello;
use cubicle_guest::journal::record;

type Target = fn(&[u8]);

/// Every target by its name, which is also that of its directory of seeds.
pub(crate) const ALL: [(&str, Target); 9] = [
    ("journal_record", journal_record),
    ("hello", hello_lines),
    ("http_request", http_request),
    ("exec_spec", exec_spec),
    ("client_response", client_response),
    ("tar_in", tar_in),
    ("path_resolve", path_resolve),
    ("context_event", context_event),
    ("tools", tools),
];

pub(crate) fn journal_record(bytes: &[u8]) {
    let mut rest = bytes;
    while let Ok(Some((record, length))) = record::decode(rest) {
        assert_eq!(length, record::HEADER_LEN + record.payload.len());
        assert!(record.payload.len() <= record::LONGEST_PAYLOAD);
        rest = &rest[length..];
    }
}

/// What the interpreter of a context says, which its user code can forge.
pub(crate) fn context_event(bytes: &[u8]) {
    let mut rest = bytes;
    while let Ok(Some(length)) = decode_context_event(rest) {
        // An event that is cut is not read.
        assert_eq!(decode_context_event(&rest[..length - 1]), Ok(None));
        rest = &rest[length..];
    }
}

pub(crate) fn hello_lines(bytes: &[u8]) {
    for line in bytes.split(|byte| *byte == b'\n') {
        if let Ok(greeting) = hello::parse_server_hello(line) {
            assert_eq!(hello::parse_server_hello(&hello::line(&greeting)), Ok(greeting));
        }
        if let Ok(client) = hello::parse_client_hello(line) {
            assert_eq!(hello::parse_client_hello(&hello::line(&client)), Ok(client));
        }
        let _ = hello::parse_server_answer(line);
    }
}

/// A text, a NUL, and a patch of it; or a path, and a pattern of names.
pub(crate) fn tools(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Some((before, given)) = text.split_once('\0') else { return };
    if let Some(after) = files::patch_for_fuzzing(before, given) {
        // A patch adds what is in it, and line ends.
        assert!(after.len() <= before.len() + 2 * given.len() + 1);
    }
    let _ = files::glob_for_fuzzing(given, before);
}

/// However a body is cut, what is decoded is the same.
pub(crate) fn http_request(bytes: &[u8]) {
    let Ok(Some((head, length))) = http::parse_head(bytes) else { return };
    assert!(length <= bytes.len() && length <= http::LONGEST_HEAD);
    let whole = decode_body(head.body, &bytes[length..], usize::MAX);
    assert_eq!(decode_body(head.body, &bytes[length..], 1), whole);
}

fn decode_body(body: http::Body, input: &[u8], piece: usize) -> (Vec<u8>, bool) {
    let mut decoder = http::BodyDecoder::new(body);
    let mut output = Vec::new();
    let mut pending = Vec::new();
    for piece in input.chunks(piece.min(input.len().max(1))) {
        pending.extend_from_slice(piece);
        loop {
            let Ok(used) = decoder.decode(&pending, &mut output, usize::MAX) else { return (output, false) };
            pending.drain(..used);
            if used == 0 || decoder.is_done() {
                break;
            }
        }
        if decoder.is_done() {
            return (output, true);
        }
    }
    (output, decoder.is_done())
}

pub(crate) fn exec_spec(bytes: &[u8]) {
    if let Ok(checked) = spec::parse(bytes) {
        assert!(!checked.arguments.iter().any(|argument| argument.contains('\0')));
        assert!(checked.cwd.starts_with('/'));
    }
}

pub(crate) fn client_response(bytes: &[u8]) {
    let whole = decode_for_fuzzing(bytes, usize::MAX).ok();
    for piece in [1, 5, 512] {
        assert_eq!(decode_for_fuzzing(bytes, piece).ok(), whole);
    }
    if let Some(body) = whole {
        journal_record(&body);
    }
}

/// Nothing that an archive says changes what is outside of the directory that it is unpacked in.
pub(crate) fn tar_in(archive: &[u8]) {
    let world = world();
    let into = world.join("root/workspace/in");
    files::unpack_for_fuzzing(open(&world.join("root")), b"/workspace/in", archive);
    let names = |path: &str| {
        let mut names: Vec<_> =
            std::fs::read_dir(world.join(path)).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(""), ["root", "secrets"]);
    assert_eq!(names("root"), ["dev", "proc", "workspace"]);
    assert_eq!(names("root/workspace"), ["in", "links"]);
    assert_eq!(names("root/proc"), ["kept"]);
    assert_eq!(names("secrets"), ["key"]);
    assert_eq!(std::fs::read(world.join("secrets/key")).unwrap(), b"secret");
    let _ = std::fs::set_permissions(&into, std::os::unix::fs::PermissionsExt::from_mode(0o755));
    std::fs::remove_dir_all(&into).unwrap();
}

/// Whatever a path says, it ends inside of the root and outside of what is not for files.
pub(crate) fn path_resolve(bytes: &[u8]) {
    let Ok(encoded) = std::str::from_utf8(bytes) else { return };
    let root = world().join("root");
    let Some(found) = files::resolve_for_fuzzing(open(&root), encoded) else { return };
    let path = std::fs::read_link(format!("/proc/self/fd/{}", found.as_raw_fd())).unwrap();
    let inside = path.strip_prefix(&root).unwrap_or_else(|_| panic!("{} is outside", path.display()));
    assert!(!inside.starts_with("proc"), "{}", path.display());
    assert!(!inside.starts_with("dev") || inside.starts_with("dev/shm"), "{}", path.display());
}

fn open(path: &Path) -> OwnedFd {
    std::fs::File::open(path).unwrap().into()
}

/// A directory that stands for the host, with a sandbox's root in it and links that try to leave it. Made once.
fn world() -> PathBuf {
    static WORLD: OnceLock<PathBuf> = OnceLock::new();
    WORLD.get_or_init(make_world).clone()
}

fn make_world() -> PathBuf {
    let world = std::env::temp_dir().join(format!("cubicle-fuzz-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&world);
    for directory in
        ["root/workspace/in", "root/workspace/links", "root/proc/kept", "root/dev/shm", "secrets"]
    {
        std::fs::create_dir_all(world.join(directory)).unwrap();
    }
    std::fs::write(world.join("secrets/key"), "secret").unwrap();
    let links = [
        ("up", "../../../secrets"),
        ("root", "/"),
        ("proc", "/proc"),
        ("loop", "loop"),
        ("dev", "../../dev"),
    ];
    for (name, target) in links {
        std::os::unix::fs::symlink(target, world.join("root/workspace/links").join(name)).unwrap();
    }
    world.canonicalize().unwrap()
}

/// Leaves nothing behind.
pub(crate) fn remove_world() {
    let _ = std::fs::remove_dir_all(world());
}
