//! Where npm gets packages from.

use std::path::PathBuf;

use super::Indexes;
use super::ini;
use super::surroundings::{Surroundings, read};
use crate::settings::Egress;

const WAY_OUT: &str = "set egress.npm_registry, or install npm";
/// Without leaving a log or a cache behind in the home directory.
const ASK: [&str; 6] =
    ["config", "get", "registry", "--logs-max=0", "--cache=/dev/null", "--no-update-notifier"];
/// Where npm keeps its configuration for all users depends on where it is installed; these are the usual places.
const FOR_ALL: [&str; 3] = ["/etc/npmrc", "/usr/etc/npmrc", "/usr/local/etc/npmrc"];

pub(super) fn find(settings: &Egress, host: &Surroundings<'_>) -> Indexes {
    let mut indexes = Indexes::new(WAY_OUT);
    if let Some(registries) = &settings.npm_registry {
        for (number, registry) in registries.iter().enumerate() {
            indexes.add(registry.clone(), "egress.npm_registry");
            if number == 0 {
                indexes.tell(&["NPM_CONFIG_REGISTRY"]);
            }
        }
        return indexes;
    }
    let mut registry = None;
    let mut scopes: Vec<(String, String)> = Vec::new();
    for path in files(host) {
        let Some(text) = read(&path) else { continue };
        let from = path.display().to_string();
        for entry in ini::entries(&text).into_iter().filter(|entry| entry.section.is_empty()) {
            let value = expanded(&entry.value, host);
            match entry.name.as_str() {
                "registry" => registry = Some((value, from.clone())),
                name if name.starts_with('@') && name.ends_with(":registry") => {
                    scopes.push((value, from.clone()));
                }
                _ => {}
            }
        }
    }
    // npm reads its variables in any case, and the last one that it finds counts.
    let variable = |name: &&str| name.eq_ignore_ascii_case("npm_config_registry");
    for name in host.environment.names().filter(variable) {
        if let Some(value) = host.variable(name) {
            registry = Some((value, format!("{name} in the environment")));
        }
    }
    match registry {
        Some((value, from)) => {
            indexes.add_text(&value, &from, &["NPM_CONFIG_REGISTRY"]);
        }
        None => {
            if let Some(said) = (host.ask)("npm", &ASK) {
                indexes.add_text(said.trim(), "npm config get registry", &[]);
            }
        }
    }
    scopes.iter().for_each(|(value, from)| indexes.add_text(value, from, &[]));
    indexes
}

/// The weightiest last.
fn files(host: &Surroundings<'_>) -> Vec<PathBuf> {
    let named = |suffix: &str| {
        let name = format!("npm_config_{suffix}");
        let found = host.environment.names().find(|known| known.eq_ignore_ascii_case(&name));
        found.and_then(|name| host.environment.path(name))
    };
    let mut files: Vec<PathBuf> = match named("globalconfig") {
        Some(path) => vec![path],
        None => FOR_ALL.iter().map(|path| host.system(path)).collect(),
    };
    files.extend(named("userconfig").or_else(|| host.home().map(|home| home.join(".npmrc"))));
    files
}

/// A value with `${VARIABLE}` replaced, as npm does.
fn expanded(value: &str, host: &Surroundings<'_>) -> String {
    let mut text = String::new();
    let mut rest = value;
    while let Some((before, behind)) = rest.split_once("${") {
        text.push_str(before);
        let Some((name, after)) = behind.split_once('}') else {
            text.push_str("${");
            rest = behind;
            continue;
        };
        match host.environment.text(name) {
            Some(known) => text.push_str(&known),
            None => text.push_str(&format!("${{{name}}}")),
        }
        rest = after;
    }
    text + rest
}
