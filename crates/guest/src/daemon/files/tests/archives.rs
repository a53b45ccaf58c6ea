use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use tar::{Archive, Builder, EntryType, Header};

use super::{Answer, World};

/// An entry with a name that the crate itself would refuse to write.
fn raw_entry(archive: &mut Vec<u8>, kind: EntryType, name: &[u8], link: &[u8], mode: u32, contents: &[u8]) {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(contents.len() as u64);
    header.set_mode(mode);
    header.set_mtime(1_000_000_000);
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link);
    header.set_cksum();
    archive.extend_from_slice(header.as_bytes());
    archive.extend_from_slice(contents);
    archive.resize(archive.len().next_multiple_of(512), 0);
}

fn finished(mut archive: Vec<u8>) -> Vec<u8> {
    archive.resize(archive.len() + 1024, 0);
    archive
}

fn unpack(world: &World, archive: Vec<u8>) -> Answer {
    world.put("/archive?into=/workspace/in", &finished(archive))
}

#[test]
fn what_is_packed_comes_out_the_same() {
    let world = World::new();
    let long_name = format!("/workspace/from/{}/{}", "d".repeat(120), "f".repeat(200));
    world.put(&format!("/files/{long_name}?parents=true"), b"long");
    world.put("/files/from/run.sh?mode=0755", b"#!/bin/sh\n");
    world.put("/files/from/big", &vec![b'x'; 700_000]);
    world.put("/files/from/empty", b"");
    std::fs::create_dir(world.host("/workspace/from/nothing")).unwrap();
    std::fs::set_permissions(world.host("/workspace/from/nothing"), PermissionsExt::from_mode(0o500))
        .unwrap();
    symlink("run.sh", world.host("/workspace/from/link")).unwrap();
    symlink("/far/".repeat(60), world.host("/workspace/from/longlink")).unwrap();
    std::fs::hard_link(world.host("/workspace/from/run.sh"), world.host("/workspace/from/same.sh")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, world.host("/workspace/from/pipe"), rustix::fs::Mode::RWXU)
        .unwrap();

    let packed = world.get("/archive?of=/workspace/from");
    assert_eq!(packed.status, 200);
    let answer = world.put("/archive?into=/workspace/to", &packed.body);
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    assert_eq!(answer.json()["bytes"], 700_000 + 4 + 10);

    assert_eq!(std::fs::read(world.host(&long_name.replace("/from/", "/to/"))).unwrap(), b"long");
    assert_eq!(std::fs::read(world.host("/workspace/to/big")).unwrap(), vec![b'x'; 700_000]);
    let run = std::fs::metadata(world.host("/workspace/to/run.sh")).unwrap();
    assert_eq!(run.mode() & 0o7777, 0o755);
    assert_eq!(run.ino(), std::fs::metadata(world.host("/workspace/to/same.sh")).unwrap().ino());
    assert_eq!(std::fs::metadata(world.host("/workspace/to/nothing")).unwrap().mode() & 0o7777, 0o500);
    assert_eq!(std::fs::read_link(world.host("/workspace/to/link")).unwrap().to_str(), Some("run.sh"));
    let far = std::fs::read_link(world.host("/workspace/to/longlink")).unwrap();
    assert_eq!(far.to_str().unwrap(), "/far/".repeat(60));
    assert!(!world.host("/workspace/to/pipe").exists());
}

#[test]
fn a_single_file_is_an_archive_of_its_own_name() {
    let world = World::new();
    world.put("/files/dir/one?parents=true", b"1");
    let packed = world.get("/archive?of=dir/one");
    let mut archive = Archive::new(&packed.body[..]);
    let names: Vec<_> = archive.entries().unwrap().map(|e| e.unwrap().path().unwrap().into_owned()).collect();
    assert_eq!(names, [std::path::Path::new("one")]);
}

#[test]
fn an_archive_of_everything_leaves_out_what_is_not_for_files() {
    let world = World::new();
    world.put("/files/kept", b"1");
    let packed = world.get("/archive?of=/");
    let mut archive = Archive::new(&packed.body[..]);
    let mut seen = BTreeMap::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut contents = String::new();
        entry.read_to_string(&mut contents).unwrap();
        seen.insert(entry.path().unwrap().to_str().unwrap().to_owned(), contents);
    }
    assert_eq!(seen.get("workspace/kept").map(String::as_str), Some("1"));
    assert!(!seen.values().any(|contents| contents == "secret"), "{seen:?}");
}

#[test]
fn an_entry_that_would_leave_the_target_is_refused_by_name() {
    use EntryType::{Directory, Link, Regular, Symlink};
    type Entry = (EntryType, &'static str, &'static str);
    let table: [(&[Entry], &str); 14] = [
        (&[(Regular, "../planted", "")], "../planted"),
        (&[(Regular, "a/../../planted", "")], "a/../../planted"),
        (&[(Regular, "/workspace/planted", "")], "/workspace/planted"),
        (&[(Regular, "..", "")], ".."),
        (&[(Directory, "../planted/", "")], "../planted/"),
        (&[(Symlink, "out", "/workspace"), (Regular, "out/planted", "")], "out/planted"),
        (&[(Symlink, "out", ".."), (Regular, "out/planted", "")], "out/planted"),
        (&[(Symlink, "out", ".."), (Directory, "out/planted/", "")], "out/planted/"),
        (&[(Symlink, "out", ".."), (Symlink, "out/planted", "x")], "out/planted"),
        (&[(Symlink, "a", "."), (Symlink, "a/out", ".."), (Regular, "out/planted", "")], "out/planted"),
        (&[(Link, "planted", "../victim")], "planted"),
        (&[(Link, "planted", "/workspace/victim")], "planted"),
        (&[(Symlink, "out", ".."), (Link, "planted", "out/victim")], "planted"),
        (&[(Symlink, "out", "/dev"), (Regular, "out/shm/planted", "")], "out/shm/planted"),
    ];
    for (entries, named) in table {
        let world = World::new();
        world.put("/files/victim", b"mine");
        let mut archive = Vec::new();
        for (kind, name, link) in entries {
            let contents: &[u8] = if *kind == Regular { b"planted" } else { b"" };
            raw_entry(&mut archive, *kind, name.as_bytes(), link.as_bytes(), 0o644, contents);
        }
        let answer = unpack(&world, archive);
        assert_eq!((answer.status, answer.code().as_str()), (400, "archive_entry_refused"), "{entries:?}");
        assert!(answer.message().contains(&format!("'{named}'")), "{entries:?}: {}", answer.message());
        assert!(!world.host("/workspace/planted").exists(), "{entries:?}");
        assert!(!world.host("/workspace/in/planted").exists(), "{entries:?}");
        assert!(!world.outside.path().join("planted").exists(), "{entries:?}");
        assert_eq!(std::fs::metadata(world.host("/workspace/victim")).unwrap().nlink(), 1, "{entries:?}");
    }
}

#[test]
fn a_link_that_was_there_before_does_not_lead_an_entry_outside() {
    let world = World::new();
    std::fs::create_dir(world.host("/workspace/in")).unwrap();
    symlink(world.outside.path().join("secrets"), world.host("/workspace/in/out")).unwrap();
    symlink("../victim", world.host("/workspace/in/file")).unwrap();
    world.put("/files/victim", b"mine");
    let mut archive = Vec::new();
    raw_entry(&mut archive, EntryType::Regular, b"file", b"", 0o644, b"new");
    raw_entry(&mut archive, EntryType::Regular, b"out/planted", b"", 0o644, b"new");
    let answer = unpack(&world, archive);
    assert_eq!(answer.code(), "archive_entry_refused");
    assert!(!world.outside.path().join("secrets/planted").exists());
    assert_eq!(world.get("/files/victim").body, b"mine");
    assert_eq!(world.get("/files/in/file").body, b"new");
}

#[test]
fn links_that_stay_inside_are_followed_as_archivers_expect() {
    let world = World::new();
    let mut archive = Vec::new();
    raw_entry(&mut archive, EntryType::Directory, b"./lib/", b"", 0o755, b"");
    raw_entry(&mut archive, EntryType::Symlink, b"lib64", b"lib", 0o777, b"");
    raw_entry(&mut archive, EntryType::Regular, b"lib64/a", b"", 0o644, b"1");
    raw_entry(&mut archive, EntryType::Regular, b"not/mentioned/b", b"", 0o644, b"2");
    let answer = unpack(&world, archive);
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    assert_eq!(world.get("/files/in/lib/a").body, b"1");
    assert_eq!(world.get("/files/in/not/mentioned/b").body, b"2");
}

#[test]
fn set_id_bits_and_devices_do_not_come_in() {
    let world = World::new();
    let mut archive = Vec::new();
    raw_entry(&mut archive, EntryType::Regular, b"program", b"", 0o6755, b"x");
    assert_eq!(unpack(&world, archive).status, 200);
    let made = std::fs::metadata(world.host("/workspace/in/program")).unwrap();
    assert_eq!(made.mode() & 0o7777, 0o755);
    assert_eq!(made.mtime(), 1_000_000_000);
    for kind in [EntryType::Char, EntryType::Block, EntryType::Fifo] {
        let mut archive = Vec::new();
        raw_entry(&mut archive, kind, b"device", b"", 0o666, b"");
        assert_eq!(unpack(&world, archive).code(), "archive_entry_refused");
        assert!(!world.host("/workspace/in/device").exists());
    }
}

#[test]
fn a_file_takes_the_place_of_a_file_but_not_of_a_directory() {
    let world = World::new();
    world.put("/files/in/a?parents=true", b"old");
    world.put("/files/in/d/x?parents=true", b"old");
    let mut archive = Vec::new();
    raw_entry(&mut archive, EntryType::Regular, b"a", b"", 0o644, b"new");
    raw_entry(&mut archive, EntryType::Regular, b"d", b"", 0o644, b"new");
    assert_eq!(unpack(&world, archive).code(), "not_a_file");
    assert_eq!(world.get("/files/in/a").body, b"new");
    assert_eq!(world.get("/files/in/d/x").body, b"old");
}

#[test]
fn what_is_no_archive_is_refused() {
    let world = World::new();
    let mut cut = Vec::new();
    raw_entry(&mut cut, EntryType::Regular, b"a", b"", 0o644, &[1; 5000]);
    let mut endless = Vec::new();
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::GNULongName);
    header.set_size(1 << 40);
    header.set_cksum();
    endless.extend_from_slice(header.as_bytes());
    endless.resize(4096, b'a');
    for (what, body) in [("gzip", vec![0x1f; 4096]), ("cut", cut[..3000].to_vec()), ("endless", endless)] {
        let answer = world.put("/archive?into=/workspace/in", &body);
        assert_eq!((answer.status, answer.code().as_str()), (400, "invalid_archive"), "{what}");
    }
    assert_eq!(world.put("/archive?into=/workspace/in", b"").status, 200);
}

#[test]
fn archives_of_the_crate_and_of_the_long_forms_are_read() {
    let world = World::new();
    let mut builder = Builder::new(Vec::new());
    let name = format!("{}/{}", "x".repeat(90), "y".repeat(150));
    let mut header = Header::new_gnu();
    header.set_size(3);
    header.set_mode(0o644);
    builder.append_data(&mut header, &name, &b"abc"[..]).unwrap();
    builder.append_pax_extensions([("path", &b"renamed/by-pax"[..]), ("mtime", b"1")]).unwrap();
    let mut header = Header::new_ustar();
    header.set_size(3);
    header.set_mode(0o644);
    builder.append_data(&mut header, "short", &b"def"[..]).unwrap();
    let answer = world.put("/archive?into=/workspace/in", &builder.into_inner().unwrap());
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    assert_eq!(world.get(&format!("/files/in/{name}")).body, b"abc");
    assert_eq!(world.get("/files/in/renamed/by-pax").body, b"def");
}
