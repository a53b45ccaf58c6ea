//! Dependencies between the crates of the workspace point one way. The table is the whole truth: a new crate or a new
//! edge is a decision, made here first.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Each crate's directory and the crates of ours that it may use.
const MAY_USE: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("sys", &[]),
    ("guest", &["model", "sys"]),
    ("launcher", &["model", "sys", "guest"]),
    ("backend", &["model", "sys", "guest"]),
    ("backend-local", &["model", "sys", "guest", "backend", "launcher", "tests-leftovers"]),
    ("store", &["model", "tests-postgresql"]),
    ("api", &["model"]),
    ("egress", &["model", "sys"]),
    ("envs", &["model"]),
    ("tools", &["model", "guest"]),
    ("worker", &["model"]),
    ("server", &["model", "guest", "backend", "store", "api", "egress", "envs", "tools", "worker"]),
    (
        "cubicle",
        &[
            "model",
            "sys",
            "guest",
            "backend",
            "backend-local",
            "store",
            "api",
            "egress",
            "envs",
            "server",
            "tools",
            "tests-leftovers",
            "tests-postgresql",
        ],
    ),
];

/// What the model may use of others: nothing here does I/O.
const MODEL_MAY_USE: &[&str] = &["jiff", "serde", "sha2", "thiserror"];

#[test]
fn crates_depend_only_in_the_one_direction() {
    let allowed: BTreeMap<_, BTreeSet<_>> =
        MAY_USE.iter().map(|(name, uses)| (*name, uses.iter().copied().collect())).collect();
    let mut found = Vec::new();
    for (name, manifest) in manifests() {
        let Some(allowed) = allowed.get(name.as_str()) else {
            found.push(format!("{name} is not in the table of dependency_direction.rs"));
            continue;
        };
        for used in dependencies(&manifest, &["dependencies", "dev-dependencies", "build-dependencies"]) {
            let Some(used) = ours(&used) else { continue };
            if !allowed.contains(used) && used != name {
                found.push(format!("{name} uses {used}"));
            }
        }
    }
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn every_crate_of_the_table_exists() {
    let there: BTreeSet<_> = manifests().into_keys().collect();
    let listed: BTreeSet<_> = MAY_USE.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(listed.difference(&there).collect::<Vec<_>>(), Vec::<&String>::new());
}

#[test]
fn the_model_uses_nothing_that_does_io() {
    let used = dependencies(&manifests()["model"], &["dependencies", "build-dependencies"]);
    assert_eq!(
        used.iter().filter(|name| !MODEL_MAY_USE.contains(&name.as_str())).collect::<Vec<_>>(),
        Vec::<&String>::new()
    );
}

#[test]
fn every_way_to_write_a_dependency_is_read() {
    let manifest = "[dependencies]\na.workspace = true\nb = \"1\"\nc = { workspace = true, features = [\"x\"] }\n\
                    d = {\n  version = \"1\",\n}\n[dev-dependencies]\ne = \"1\"\n[dependencies.f]\nversion = \"1\"\n\
                    [target.'cfg(unix)'.dependencies]\ng = \"1\"\n[features]\nh = []\n";
    let names =
        |sections: &[&str]| dependencies(manifest, sections).into_iter().collect::<Vec<_>>().join(" ");
    assert_eq!(names(&["dependencies"]), "a b c d f g");
    assert_eq!(names(&["dependencies", "dev-dependencies"]), "a b c d e f g");
}

/// The crate's directory name, when the dependency is one of ours.
fn ours(dependency: &str) -> Option<&str> {
    if dependency == "cubicle" { Some("cubicle") } else { dependency.strip_prefix("cubicle-") }
}

fn manifests() -> BTreeMap<String, String> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in crates/");
    let manifest = |directory: PathBuf| {
        let name = directory.file_name()?.to_str()?.to_owned();
        Some((name, fs::read_to_string(directory.join("Cargo.toml")).ok()?))
    };
    let entries = fs::read_dir(crates).expect("crates/ can be read");
    entries.filter_map(|entry| manifest(entry.expect("an entry can be read").path())).collect()
}

/// Names of the dependencies in the sections of these kinds. Reads what our manifests use of TOML, not all of it.
fn dependencies(manifest: &str, kinds: &[&str]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut listed = false;
    let mut open_braces = 0_i32;
    for line in manifest.lines().map(str::trim) {
        if let Some(section) =
            line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).filter(|_| open_braces == 0)
        {
            listed = kinds.iter().any(|kind| section == *kind || section.ends_with(&format!(".{kind}")));
            names.extend(
                kinds.iter().filter_map(|kind| section.strip_prefix(&format!("{kind}."))).map(str::to_owned),
            );
            continue;
        }
        if listed && open_braces == 0 && !line.starts_with('#') {
            let name = line.split(['=', '.']).next().unwrap_or_default().trim().trim_matches('"');
            if !name.is_empty() {
                names.insert(name.to_owned());
            }
        }
        let count = |brace| i32::try_from(line.matches(brace).count()).expect("a line is short");
        open_braces += count('{') - count('}');
    }
    names
}
