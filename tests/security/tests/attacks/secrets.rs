//! What the host knows and no sandbox may.

use cubicle_backend::Backend;
use cubicle_guest::client::WriteFile;
use cubicle_model::{Binding, LimitRequest, Placement, Root, SecretFile, SecretsToGive};

use crate::arena::{Arena, fresh_id, placement, skip, token};

const EROFS: i32 = rustix::io::Errno::ROFS.raw_os_error();
const VARIABLE: &str = "CUBICLE_SECURITY_TEST_SECRET";
const ALONE: &str = "secrets::secret_of_the_caller_is_nowhere_inside";

#[test]
fn secret_of_the_caller_is_nowhere_inside() {
    #[expect(
        clippy::disallowed_methods,
        reason = "the test puts a secret into the environment to look for it"
    )]
    let secret = std::env::var(VARIABLE);
    let Ok(secret) = secret else { return with_a_secret() };
    let Some(arena) = Arena::enter() else { return };
    let scrambled: String = secret.bytes().map(|byte| char::from(byte ^ 1)).collect();
    let seen = arena.attack(&["search-proc", &scrambled]).saw().to_owned();
    let (count, found) = seen.split_once(" files; found in: ").expect("two parts");
    assert!(count.parse::<u32>().expect("a number") > 50, "the search looked at {count} files only");
    assert_eq!(found, "");
}

/// Runs the test above in a process whose environment, arguments and memory hold a secret.
fn with_a_secret() {
    let own = std::env::current_exe().expect("this program has a path");
    #[expect(clippy::disallowed_methods, reason = "only a new process can have another environment")]
    let run = std::process::Command::new(own)
        .args(["--exact", ALONE, "--nocapture"])
        .env(VARIABLE, token())
        .output();
    let run = run.expect("this program can be started");
    let shown = String::from_utf8_lossy(&run.stderr);
    if let Some(line) = shown.lines().find(|line| line.starts_with("skipped:")) {
        return skip(line);
    }
    assert!(run.status.success(), "{}{shown}", String::from_utf8_lossy(&run.stdout));
}

#[test]
fn sandbox_has_an_environment_of_its_own() {
    let Some(arena) = Arena::enter() else { return };
    let names = arena.attack(&["environment"]).saw().to_owned();
    let own = [
        "HOME",
        "LANG",
        "LOGNAME",
        "PATH",
        "PIP_BREAK_SYSTEM_PACKAGES",
        "PIP_CACHE_DIR",
        "PIP_USER",
        "PYTHONUSERBASE",
        "SHELL",
        "TMPDIR",
        "USER",
        "XDG_CACHE_HOME",
        "npm_config_cache",
    ];
    for name in names.split(' ') {
        assert!(own.contains(&name), "{name} came from outside");
    }
}

#[test]
fn sandbox_has_no_users_keys_or_machine_id_of_the_host() {
    let Some(arena) = Arena::enter() else { return };
    let absent = [
        "shadow",
        "gshadow",
        "machine-id",
        "sudoers",
        "sudoers.d",
        "ssh",
        "ssl/private",
        "subuid",
        "subgid",
        "crontab",
        "fstab",
        "cubicle",
        "security",
        "pam.d",
        "NetworkManager",
        "kubernetes",
        "docker",
        "krb5.keytab",
        "passwd-",
        "shadow-",
        "hosts.allow",
        "exports",
        "systemd",
        "letsencrypt",
    ];
    for name in absent {
        let path = format!("/etc/{name}");
        arena
            .attack_from(arena.attacker, &["read", &path])
            .refused(&[rustix::io::Errno::NOENT.raw_os_error()]);
    }
    let users = arena.attack(&["read", "/etc/passwd"]).saw().to_owned();
    let names: Vec<&str> = users.lines().filter_map(|line| line.split(':').next()).collect();
    assert_eq!(names, ["root", "agent", "nobody"]);
    let hosts = arena.attack(&["read", "/etc/hosts"]).saw().to_owned();
    assert!(!hosts.contains(&rustix::system::uname().nodename().to_string_lossy().into_owned()), "{hosts}");
    for path in ["/var/lib/dbus/machine-id", "/root", "/home/agent/.ssh", "/root/.ssh/id_rsa"] {
        arena.attack_from(arena.attacker, &["list", path]).nothing();
    }
}

#[test]
fn sandbox_cannot_read_settings_that_only_root_may_read() {
    let Some(arena) = Arena::enter_as_root() else { return };
    use std::os::unix::fs::PermissionsExt;
    let root = arena.shared().join(token());
    for name in ["usr", "etc"] {
        std::fs::create_dir_all(root.join(name)).expect("the directory is ours");
    }
    let secret = root.join("etc/wgetrc");
    std::fs::write(&secret, "proxy_password = hunter2\n").expect("the directory is ours");
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).expect("the file is ours");
    let place = Placement { root: Root::Directory(root), ..placement(fresh_id()) };
    let seen = arena.wait(cubicle_backend::Backend::ensure(&arena.backend, &place));
    if let Err(fault) = seen {
        return skip(format!("a root without programs cannot be had: {fault}"));
    }
    let read = arena.wait(arena.guest(place.id).read_file("/etc/wgetrc", None, 1024));
    arena.wait(cubicle_backend::Backend::destroy(&arena.backend, place.id)).expect("it can be destroyed");
    if let Ok(bytes) = read {
        panic!("a file of mode 0600 is readable inside: {}", String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn sandbox_cannot_replace_or_write_its_secret_files() {
    let Some(arena) = Arena::enter_as_root() else { return };
    let fresh = arena.fresh(LimitRequest::default());
    let secret = token();
    let file = SecretFile { name: "key".parse().expect("a plain name"), bytes: secret.clone().into() };
    let secrets = SecretsToGive { files: vec![file], ..Default::default() };
    let late = Binding { secrets, ..Binding::default() };
    arena.wait(arena.backend.bind(fresh.id, &late)).expect("secrets are given");
    assert_eq!(fresh.attack(&["read", "/var/secrets/key"]).saw(), secret);

    for path in ["/var/secrets/key", "/run/secrets/key", "/run/secrets", "/var/secrets"] {
        fresh.attack(&["tamper", path]).refused(&[EROFS]);
    }
    let new =
        ["/var/secrets/other", "/run/secrets/other", "/run/secrets/.hidden", "/run/other", "/var/other"];
    fresh.attack(&[&["create"], &new[..]].concat()).refused(&[EROFS]);
    for path in ["/var/secrets/key", "/run/secrets/key", "/var/secrets/other", "/run/secrets/other"] {
        let written = arena.wait(fresh.guest().write_file(path, b"forged", WriteFile::default()));
        assert!(written.is_err(), "{path} was written through the file API");
    }
    assert_eq!(fresh.attack(&["read", "/var/secrets/key"]).saw(), secret);
    assert_eq!(fresh.attack(&["list", "/var/secrets"]).saw(), "key");
    // Others have a directory of their own.
    arena.attack_from(arena.neighbour, &["list", "/var/secrets"]).nothing();
}
