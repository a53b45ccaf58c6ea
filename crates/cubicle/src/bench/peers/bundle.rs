//! What an OCI runtime is given to run: the host's `/usr` read-only and `/bin/true`.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use cubicle_model::Fault;
use serde_json::{Value, json};

use crate::bench::site::unusable;

/// Directories beside `/usr` that programs need, and where each points on a host that has merged them into `/usr`.
pub(super) fn top_level() -> Vec<(&'static str, Option<String>)> {
    let names = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];
    let there = names.into_iter().filter_map(|name| {
        let path = Path::new("/").join(name);
        let about = fs::symlink_metadata(&path).ok()?;
        let link = about.is_symlink().then(|| fs::read_link(&path).ok()).flatten();
        Some((name, link.map(|link| link.display().to_string())))
    });
    there.collect()
}

/// Makes a directory with `config.json` and `rootfs`.
pub(super) fn make(scratch: &Path) -> Result<PathBuf, Fault> {
    let path = scratch.join("bundle");
    build(&path).map_err(|error| unusable(&path, error))?;
    Ok(path)
}

fn build(path: &Path) -> io::Result<()> {
    let root = path.join("rootfs");
    for name in ["usr", "proc", "dev", "tmp", "sys"] {
        fs::create_dir_all(root.join(name))?;
    }
    for (name, link) in top_level() {
        match link {
            Some(link) => symlink(link, root.join(name))?,
            None => fs::create_dir_all(root.join(name))?,
        }
    }
    let config = config(rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    fs::write(path.join("config.json"), config.to_string())
}

/// As close to a sandbox as the runtimes' defaults come: every namespace but the user namespace, no capabilities, and
/// the same three limits. An ordinary user has to have the user namespace and has no limits.
fn config(uid: u32, gid: u32) -> Value {
    let unmerged = top_level().into_iter().filter(|(_, link)| link.is_none()).map(|(name, _)| name);
    let mut mounts: Vec<Value> = ["usr"].into_iter().chain(unmerged).map(read_only).collect();
    mounts.extend([
        json!({ "destination": "/proc", "type": "proc", "source": "proc" }),
        json!({ "destination": "/dev", "type": "tmpfs", "source": "tmpfs",
                "options": ["nosuid", "strictatime", "mode=755", "size=65536k"] }),
        json!({ "destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev"] }),
    ]);
    let mut kinds = vec!["pid", "network", "ipc", "uts", "mount", "cgroup"];
    let mut linux = json!({});
    if uid == 0 {
        linux["resources"] = json!({
            "memory": { "limit": 2_147_483_648_u64 },
            "pids": { "limit": 512 },
            "cpu": { "quota": 200_000, "period": 100_000 },
        });
    } else {
        kinds.push("user");
        linux["uidMappings"] = json!([{ "containerID": 0, "hostID": uid, "size": 1 }]);
        linux["gidMappings"] = json!([{ "containerID": 0, "hostID": gid, "size": 1 }]);
    }
    linux["namespaces"] = kinds.into_iter().map(|kind| json!({ "type": kind })).collect();
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": false,
            "user": { "uid": 0, "gid": 0 },
            "args": ["/bin/true"],
            "env": ["PATH=/usr/bin:/bin"],
            "cwd": "/",
            "noNewPrivileges": true,
        },
        "root": { "path": "rootfs", "readonly": true },
        "hostname": "bench",
        "mounts": mounts,
        "linux": linux,
    })
}

fn read_only(name: &str) -> Value {
    let path = format!("/{name}");
    json!({ "destination": path, "type": "bind", "source": path, "options": ["bind", "ro", "nosuid", "nodev"] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_has_limits_and_an_ordinary_user_a_user_namespace() {
        let has_user = |config: &Value| {
            let namespaces = config["linux"]["namespaces"].as_array().unwrap();
            namespaces.iter().any(|namespace| namespace["type"] == "user")
        };
        let root = config(0, 0);
        assert!(root["linux"]["resources"]["pids"]["limit"].is_u64() && !has_user(&root));
        let user = config(1000, 1000);
        assert!(user["linux"]["resources"].is_null() && has_user(&user));
        assert_eq!(user["linux"]["uidMappings"][0]["hostID"], 1000);
    }

    #[test]
    fn a_bundle_has_a_root_with_the_hosts_links() {
        let scratch = tempfile::tempdir().unwrap();
        let bundle = make(scratch.path()).unwrap();
        for (name, link) in top_level() {
            let about = fs::symlink_metadata(bundle.join("rootfs").join(name)).unwrap();
            assert_eq!(about.is_symlink(), link.is_some(), "{name}");
        }
    }
}
