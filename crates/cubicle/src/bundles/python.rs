//! Where pip and uv get packages from.

use std::path::PathBuf;

use toml::{Table, Value};

use super::Indexes;
use super::ini;
use super::surroundings::{Surroundings, read};
use crate::settings::Egress;
use cubicle_model::egress::WebAddress;

const WAY_OUT: &str = "set egress.python_index, or install pip or uv";
/// Sections of pip's files, the weightiest last.
const PIP_SECTIONS: [&str; 3] = ["global", "install", "download"];
/// The index that is compiled into pip, and where that index keeps its files, as pip itself knows it.
const PIP_DEFAULTS: &str = "from pip._internal.models.index import PyPI; \
                            print(PyPI.simple_url, getattr(PyPI, 'file_storage_domain', ''))";

/// By which pip and uv are told of the first index, and of further ones.
const FIRST: [&str; 2] = ["PIP_INDEX_URL", "UV_DEFAULT_INDEX"];
const MORE: [&str; 2] = ["PIP_EXTRA_INDEX_URL", "UV_INDEX"];

/// What one source says about indexes.
#[derive(Debug, Default)]
struct Said {
    /// The index that takes the place of the one that is compiled in.
    first: Option<(String, String)>,
    /// Further indexes, each with where it stands.
    more: Vec<(String, String)>,
    /// Pages of links, likewise.
    links: Vec<(String, String)>,
}

/// Addresses of indexes as a host's clients are configured with them, passwords included: the first, and further ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Configured {
    pub(crate) first: Option<String>,
    pub(crate) more: Vec<String>,
}

pub(super) fn configured(host: &Surroundings<'_>) -> Configured {
    let mut remarks = Indexes::new(WAY_OUT);
    let mut all = Configured::default();
    // uv is asked first: it is the one that is told.
    for said in [uv(host, &mut remarks), pip(host)] {
        all.first = all.first.or(said.first.map(|(text, _)| text));
        all.more.extend(said.more.into_iter().map(|(text, _)| text));
    }
    let mut seen = std::collections::HashSet::new();
    all.more.retain(|text| seen.insert(text.clone()));
    all
}

pub(super) fn find(settings: &Egress, host: &Surroundings<'_>) -> Indexes {
    let mut indexes = Indexes::new(WAY_OUT);
    let mut has_first = false;
    if let Some(index) = &settings.python_index {
        indexes.add(index.clone(), "egress.python_index");
        indexes.tell(&FIRST);
        has_first = true;
    } else {
        for said in [pip(host), uv(host, &mut indexes)] {
            if let Some((text, from)) = said.first {
                indexes.add_text(&text, &from, if has_first { &[] } else { &FIRST });
                has_first = true;
            }
            said.more.iter().chain(&said.links).for_each(|(text, from)| indexes.add_text(text, from, &MORE));
        }
    }
    for index in settings.python_extra_indexes.iter().flatten() {
        indexes.add(index.clone(), "egress.python_extra_indexes");
        indexes.tell(&MORE);
    }
    add_defaults(&mut indexes, has_first, host);
    indexes
}

/// Adds what is compiled into the clients: the index where none is configured, and the host of its files where it is the
/// one that is used.
fn add_defaults(indexes: &mut Indexes, has_first: bool, host: &Surroundings<'_>) {
    let may_be_default = |place: &WebAddress| {
        place.rule(false).target.scheme == Some(cubicle_model::egress::Scheme::Https)
            && place.port == 443
            && !super::is_private(place, host)
    };
    if has_first && !indexes.places.iter().any(may_be_default) {
        return;
    }
    if let Some((index, files)) = compiled_into_pip(host) {
        let is_used = indexes.places.iter().any(|place| place.host == index.host);
        if !has_first {
            indexes.add(index, "what pip has built in");
        }
        if let Some(files) = files.filter(|_| is_used || !has_first) {
            indexes.add(files, "what pip has built in");
        }
    } else if !has_first && let Some(index) = compiled_into_uv(host) {
        indexes.add(index, "what uv has built in");
        indexes.remark(
            "if its files come from another host, add that to egress.python_extra_indexes".to_owned(),
        );
    }
}

fn pip(host: &Surroundings<'_>) -> Said {
    let mut said = Said::default();
    let files: Vec<(PathBuf, Vec<ini::Entry>)> = pip_files(host)
        .into_iter()
        .filter_map(|path| read(&path).map(|text| (path, ini::entries(&text))))
        .collect();
    // A section of a command counts more than the general one, whatever file it stands in.
    let (mut first, mut more) = (None, [None, None]);
    for section in PIP_SECTIONS {
        for (path, entries) in &files {
            for entry in entries.iter().filter(|entry| entry.section == section) {
                let found = Some((entry.value.clone(), path.display().to_string()));
                match entry.name.replace('_', "-").as_str() {
                    "index-url" | "pypi-url" => first = found,
                    "extra-index-url" => more[0] = found,
                    "find-links" => more[1] = found,
                    _ => {}
                }
            }
        }
    }
    let variable = |name: &str| host.variable(name).map(|text| (text, format!("{name} in the environment")));
    said.first = variable("PIP_INDEX_URL").or(first);
    let [extra, links] = more;
    for (found, into) in [
        (variable("PIP_EXTRA_INDEX_URL").or(extra), &mut said.more),
        (variable("PIP_FIND_LINKS").or(links), &mut said.links),
    ] {
        let Some((value, from)) = found else { continue };
        // A page of links may be a directory of this host, which is no business of the gateway.
        let addresses =
            value.split_whitespace().filter(|word| word.contains("://") && !word.starts_with("file:"));
        into.extend(addresses.map(|word| (word.to_owned(), from.clone())));
    }
    said
}

/// The weightiest last. Where pip itself lives is not known without asking it; what it is configured with there holds for
/// virtual environments, of which the one in use is named by a variable.
fn pip_files(host: &Surroundings<'_>) -> Vec<PathBuf> {
    let named = host.environment.path("PIP_CONFIG_FILE");
    if named.as_deref() == Some(std::path::Path::new("/dev/null")) {
        return Vec::new();
    }
    let mut files: Vec<PathBuf> =
        host.system_configuration().into_iter().map(|directory| directory.join("pip/pip.conf")).collect();
    files.push(host.system("/etc/pip.conf"));
    files.extend(host.home().map(|home| home.join(".pip/pip.conf")));
    files.extend(host.user_configuration().map(|directory| directory.join("pip/pip.conf")));
    files.extend(host.environment.path("VIRTUAL_ENV").map(|directory| directory.join("pip.conf")));
    files.extend(named);
    files
}

fn uv(host: &Surroundings<'_>, indexes: &mut Indexes) -> Said {
    let mut said = Said::default();
    for path in uv_files(host) {
        let Some(text) = read(&path) else { continue };
        let from = path.display().to_string();
        match text.parse::<Table>() {
            Ok(table) => uv_file(&table, &from, &mut said),
            Err(_) => indexes.remark(format!("{from} is not valid TOML and was left out")),
        }
    }
    for name in ["UV_INDEX_URL", "UV_DEFAULT_INDEX"] {
        if let Some(text) = host.variable(name) {
            said.first = Some((unnamed(text.trim()).to_owned(), format!("{name} in the environment")));
        }
    }
    for name in ["UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS"] {
        let text = host.variable(name).unwrap_or_default();
        let words = text.split([' ', ',', '\n']).map(unnamed).filter(|word| is_remote(word));
        let into = if name == "UV_FIND_LINKS" { &mut said.links } else { &mut said.more };
        into.extend(words.map(|word| (word.to_owned(), format!("{name} in the environment"))));
    }
    said
}

/// The weightiest last.
fn uv_files(host: &Surroundings<'_>) -> Vec<PathBuf> {
    if host.variable("UV_NO_CONFIG").is_some_and(|text| text != "0" && text != "false") {
        return Vec::new();
    }
    if let Some(named) = host.environment.path("UV_CONFIG_FILE") {
        return vec![named];
    }
    let mut files = vec![host.system("/etc/uv/uv.toml")];
    files.extend(host.system_configuration().into_iter().map(|directory| directory.join("uv/uv.toml")));
    files.extend(host.user_configuration().map(|directory| directory.join("uv/uv.toml")));
    files
}

fn uv_file(table: &Table, from: &str, said: &mut Said) {
    let at = |text: &str| (text.to_owned(), from.to_owned());
    for table in [Some(table), table.get("pip").and_then(Value::as_table)].into_iter().flatten() {
        if let Some(url) = table.get("index-url").and_then(Value::as_str) {
            said.first = Some(at(url));
        }
        for (key, into) in [("extra-index-url", &mut said.more), ("find-links", &mut said.links)] {
            let listed = table.get(key).and_then(Value::as_array).into_iter().flatten();
            into.extend(listed.filter_map(Value::as_str).filter(|url| is_remote(url)).map(at));
        }
    }
    for index in table.get("index").and_then(Value::as_array).into_iter().flatten() {
        let Some(url) = index.get("url").and_then(Value::as_str).filter(|url| is_remote(url)) else {
            continue;
        };
        if index.get("default").and_then(Value::as_bool) == Some(true) {
            said.first = Some(at(url));
        } else {
            said.more.push(at(url));
        }
    }
}

fn is_remote(address: &str) -> bool {
    address.contains("://") && !address.starts_with("file:")
}

/// uv writes an index as `NAME=URL` where it has a name.
fn unnamed(index: &str) -> &str {
    match index.split_once('=') {
        Some((name, url)) if url.contains("://") && !name.contains("://") => url,
        _ => index,
    }
}

fn compiled_into_pip(host: &Surroundings<'_>) -> Option<(WebAddress, Option<WebAddress>)> {
    for python in ["python3", "python"] {
        let said = (host.ask)(python, &["-c", PIP_DEFAULTS]);
        let words: Vec<&str> = said.as_deref().unwrap_or_default().split_whitespace().collect();
        if let [index, files @ ..] = words.as_slice()
            && let Ok(index) = index.parse()
        {
            return Some((index, files.first().and_then(|files| format!("https://{files}").parse().ok())));
        }
    }
    // A pip that Python does not find has its default in its help.
    for pip in ["pip3", "pip"] {
        let help = (host.ask)(pip, &["download", "--help"]).unwrap_or_default();
        if let Some(index) = behind(&help, "(default: ").or_else(|| behind(&help, "(default ")) {
            return Some((index, None));
        }
    }
    None
}

fn compiled_into_uv(host: &Surroundings<'_>) -> Option<WebAddress> {
    let help = (host.ask)("uv", &["pip", "install", "--help"])?;
    behind(&help, "default: <").or_else(|| behind(&help, "default: "))
}

/// The first address that stands behind the words.
fn behind(text: &str, words: &str) -> Option<WebAddress> {
    text.match_indices(words).find_map(|(at, _)| {
        let rest = &text[at + words.len()..];
        let end = rest.find(|c: char| c.is_whitespace() || ")>]".contains(c))?;
        rest[..end].parse().ok()
    })
}
