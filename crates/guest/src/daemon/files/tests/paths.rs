use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};

use super::World;

fn with_traps() -> World {
    let world = World::new();
    std::fs::write(world.host("/workspace/file"), "plain").unwrap();
    std::fs::write(world.host("/etc-passwd"), "root of the sandbox").unwrap();
    let links = [
        ("../../../../../../../secrets", "/workspace/up"),
        ("/etc-passwd", "/workspace/absolute"),
        ("/proc", "/workspace/kernel"),
        ("../proc/self", "/workspace/self"),
        ("/dev", "/workspace/devices"),
        ("loop", "/workspace/loop"),
        ("file", "/workspace/link"),
        ("nothing", "/workspace/dangling"),
    ];
    for (target, link) in links {
        symlink(target, world.host(link)).unwrap();
    }
    world
}

#[test]
fn no_path_reads_what_is_outside_of_the_root_or_not_for_files() {
    let world = with_traps();
    let table = [
        ("file", 200, ""),
        ("/workspace/file", 200, ""),
        ("/workspace/../workspace/./file", 200, ""),
        ("link", 200, ""),
        ("/../../../../workspace/file", 200, ""),
        ("%2e%2e/%2e%2e/workspace/file", 200, ""),
        // Links are resolved as the sandbox itself would: above the root is the root.
        ("absolute", 200, ""),
        ("up/key", 404, "not_found"),
        ("../../secrets/key", 404, "not_found"),
        ("/../secrets/key", 404, "not_found"),
        ("%2e%2e/%2e%2e/secrets/key", 404, "not_found"),
        ("/proc/self/environ", 403, "path_not_allowed"),
        ("kernel/self/environ", 403, "path_not_allowed"),
        ("self/environ", 403, "path_not_allowed"),
        ("/workspace/../proc/self/environ", 403, "path_not_allowed"),
        ("/dev/disk", 403, "path_not_allowed"),
        ("devices/disk", 403, "path_not_allowed"),
        ("loop", 403, "path_not_allowed"),
        ("dangling", 404, "not_found"),
        ("file/below", 409, "not_a_directory"),
        ("/workspace", 409, "not_a_file"),
        ("/", 409, "not_a_file"),
        ("%00", 400, "invalid_path"),
        ("", 400, "invalid_path"),
    ];
    for (path, status, code) in table {
        let answer = world.get(&format!("/files/{path}"));
        assert_eq!((answer.status, answer.code().as_str()), (status, code), "{path}");
        assert_ne!(answer.body, b"secret", "{path}");
    }
    assert_eq!(world.get(&format!("/files/{}", "a".repeat(5000))).code(), "invalid_path");
    assert_eq!(world.get(&format!("/files/{}", "a".repeat(300))).code(), "invalid_path");
}

#[test]
fn shared_memory_is_the_one_place_for_files_below_dev() {
    let world = World::new();
    assert_eq!(world.put("/files//dev/shm/a", b"1").status, 201);
    assert_eq!(world.get("/files//dev/shm/a").body, b"1");
    assert_eq!(world.put("/files//dev/a", b"1").code(), "path_not_allowed");
    assert_eq!(world.put("/files//dev/shm/../a", b"1").code(), "path_not_allowed");
}

#[test]
fn no_route_changes_or_shows_what_is_not_for_files() {
    let world = with_traps();
    let table = [
        ("PUT", "/files//proc/new"),
        ("PUT", "/files/kernel/new"),
        ("PUT", "/files//proc/self/deeper/new?parents=true"),
        ("PUT", "/files/kernel/deeper/new?parents=true"),
        ("DELETE", "/files//proc/self/environ"),
        ("DELETE", "/files//dev/shm/../disk"),
        ("GET", "/files?list=/proc"),
        ("GET", "/files?list=/workspace/kernel"),
        ("GET", "/files?stat=/dev/disk"),
        ("POST", "/files?mkdir=/sys/new"),
        ("POST", "/files?mkdir=/workspace/devices/new"),
        ("POST", "/files?move=/workspace/file&to=/proc/file"),
        ("POST", "/files?move=/proc/self/environ&to=/workspace/environ"),
        ("GET", "/archive?of=/proc"),
        ("GET", "/archive?of=/workspace/self"),
        ("PUT", "/archive?into=/proc/new"),
        ("PUT", "/archive?into=/workspace/devices"),
        ("GET", "/watch?path=/proc"),
    ];
    for (method, target) in table {
        let answer = world.ask(method, target, &[], b"");
        assert_eq!((answer.status, answer.code().as_str()), (403, "path_not_allowed"), "{method} {target}");
    }
    assert!(world.host("/proc/self/environ").exists());
    assert!(!world.host("/proc/new").exists());
    assert!(!world.host("/proc/self/deeper").exists());
}

#[test]
fn the_real_proc_is_refused_wherever_it_is_mounted() {
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY;
    let host = rustix::fs::open("/", flags, rustix::fs::Mode::empty()).unwrap();
    let root = super::super::root::Root::new(host).unwrap();
    for path in ["/proc/self/environ", "/proc/self/root/etc/hostname", "/proc/self/cwd", "/sys/kernel/notes"]
    {
        let path = super::super::path::SandboxPath::from_bytes(path.as_bytes()).unwrap();
        assert_eq!(root.open_file(&path).unwrap_err().code, "path_not_allowed", "{path}");
    }
}

#[test]
fn a_pipe_or_a_socket_is_refused_without_waiting_for_its_other_end() {
    let world = World::new();
    let mode = rustix::fs::Mode::RWXU;
    rustix::fs::mkfifoat(rustix::fs::CWD, world.host("/workspace/pipe"), mode).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(world.host("/workspace/socket")).unwrap();
    assert_eq!(world.get("/files/pipe").code(), "not_a_file");
    assert_eq!(world.get("/files/socket").code(), "not_a_file");
    assert_eq!(world.get("/archive?of=pipe").code(), "not_a_file");
}

#[test]
fn a_link_swapped_for_a_directory_again_and_again_never_leads_outside() {
    let world = World::new();
    let outside = world.outside.path().join("secrets");
    std::fs::create_dir(world.host("/workspace/real")).unwrap();
    std::fs::write(world.host("/workspace/real/key"), "own").unwrap();
    symlink(&outside, world.host("/workspace/fake")).unwrap();
    let relative = "../../secrets";
    symlink(relative, world.host("/workspace/climbing")).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let names = ["real", "fake", "climbing"].map(|name| world.host(&format!("/workspace/{name}")));
            let (turn, spare) = (world.host("/workspace/turn"), world.host("/workspace/spare"));
            while !stop.load(Ordering::Relaxed) {
                for name in &names {
                    let _ = std::fs::rename(name, &turn);
                    let _ = std::fs::rename(&turn, &spare);
                    let _ = std::fs::rename(&spare, name);
                }
            }
        });
        for round in 0..3000 {
            let read = world.get("/files/turn/key");
            assert!(read.body != b"secret", "round {round}");
            world.put("/files/turn/planted", b"x");
            world.ask("DELETE", "/files/turn?recursive=true", &[], b"");
            if round % 50 == 0 {
                std::fs::create_dir_all(world.host("/workspace/real")).ok();
                std::fs::write(world.host("/workspace/real/key"), "own").ok();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    let left: Vec<_> = std::fs::read_dir(&outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["key"]);
    assert_eq!(std::fs::read(outside.join("key")).unwrap(), b"secret");
}

#[test]
fn a_directory_moved_out_of_the_root_during_a_walk_ends_the_walk() {
    let world = World::new();
    std::fs::create_dir_all(world.host("/workspace/tree/a/b")).unwrap();
    let path = super::super::path::SandboxPath::from_bytes(b"/workspace/tree").unwrap();
    let directory = world.root.open_directory(&path).unwrap();
    let mut walk = super::super::walk::Walk::new(&world.root, directory).unwrap();
    assert!(matches!(walk.next(), Ok(Some(super::super::walk::Step::Entry { .. }))));
    assert!(walk.enter("a".as_ref()).unwrap());
    std::fs::rename(world.host("/workspace/tree/a"), world.outside.path().join("secrets/a")).unwrap();
    assert!(matches!(walk.next(), Ok(Some(super::super::walk::Step::Entry { .. }))));
    assert!(walk.next().is_err());
}
