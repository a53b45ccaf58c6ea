//! Where apt gets packages from.

use std::path::{Path, PathBuf};

use super::Indexes;
use super::surroundings::{Surroundings, read};

const WAY_OUT: &str = "write its rules to egress.bundles.debian, or list sources in /etc/apt";

pub(super) fn find(host: &Surroundings<'_>) -> Indexes {
    let mut indexes = Indexes::new(WAY_OUT);
    for path in files(host) {
        let Some(text) = read(&path) else { continue };
        let from = path.display().to_string();
        let addresses = if path.extension().is_some_and(|kind| kind == "sources") {
            stanzas(&text)
        } else {
            lines(&text)
        };
        for address in addresses {
            add(&mut indexes, &address, &from, host);
        }
    }
    indexes
}

fn files(host: &Surroundings<'_>) -> Vec<PathBuf> {
    let mut files = vec![host.system("/etc/apt/sources.list")];
    let parts = std::fs::read_dir(host.system("/etc/apt/sources.list.d")).into_iter().flatten().flatten();
    let mut parts: Vec<PathBuf> = parts
        .map(|part| part.path())
        .filter(|path| path.extension().is_some_and(|kind| kind == "list" || kind == "sources"))
        .collect();
    parts.sort();
    files.append(&mut parts);
    files
}

/// Adds what is fetched over the web; discs and directories are not.
fn add(indexes: &mut Indexes, address: &str, from: &str, host: &Surroundings<'_>) {
    if let Some(list) = address.strip_prefix("mirror+file:").or_else(|| address.strip_prefix("mirror:file:"))
    {
        let path = host.system(list.trim_start_matches("//"));
        for mirror in read(Path::new(&path)).unwrap_or_default().lines() {
            let mirror = mirror.split_whitespace().next().unwrap_or_default();
            if mirror.starts_with("http") {
                indexes.add_text(mirror, &path.display().to_string(), &[]);
            }
        }
        return;
    }
    let address = address.strip_prefix("mirror+").unwrap_or(address);
    if address.starts_with("http://") || address.starts_with("https://") {
        indexes.add_text(address, from, &[]);
    }
}

/// `deb [options] ADDRESS suite component...`
fn lines(text: &str) -> Vec<String> {
    let mut addresses = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let Some(rest) = line.strip_prefix("deb-src").or_else(|| line.strip_prefix("deb")) else { continue };
        let rest = rest.trim_start();
        let rest = match rest.strip_prefix('[') {
            Some(options) => options.split_once(']').map_or("", |(_, rest)| rest),
            None => rest,
        };
        addresses.extend(rest.split_whitespace().next().map(str::to_owned));
    }
    addresses
}

/// Paragraphs of fields, of which `URIs` lists addresses, unless the paragraph is not enabled.
fn stanzas(text: &str) -> Vec<String> {
    let mut addresses = Vec::new();
    let mut field = String::new();
    let (mut listed, mut enabled) = (Vec::new(), true);
    for line in text.lines().chain([""]) {
        if line.starts_with('#') {
            continue;
        }
        if line.trim().is_empty() {
            if enabled {
                addresses.append(&mut listed);
            }
            (field, listed, enabled) = (String::new(), Vec::new(), true);
            continue;
        }
        let value = if line.starts_with([' ', '\t']) {
            line
        } else {
            let (name, value) = line.split_once(':').unwrap_or((line, ""));
            field = name.trim().to_ascii_lowercase();
            value
        };
        match field.as_str() {
            "uris" => listed.extend(value.split_whitespace().map(str::to_owned)),
            "enabled" => {
                let value = value.trim().to_ascii_lowercase();
                enabled = !["no", "false", "0", "off", "without", "disable"].contains(&value.as_str());
            }
            _ => {}
        }
    }
    addresses
}
