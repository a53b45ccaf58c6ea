//! What is said about code execution: templates of tools, Python environments, and how long is waited for a sandbox.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use cubicle_envs::{AllowedPackages, Index};
use cubicle_model::limits::ByteSize;
use cubicle_model::{Fault, Kind, Name};

use super::{number, parse};
use crate::values::Span;

/// Templates are a table of their own in the file, and have no variables.
pub(super) const TEMPLATES: &str = "sandbox.templates.";
/// True or false.
pub(super) const WARM: &str = "sandbox.warm_interpreters";
pub(super) const NO_INDEX: &str = "sandbox.python_index.no_index";
/// May be written as lists.
pub(super) const LISTS: [&str; 4] = [
    "sandbox.python_index.extra_indices",
    "sandbox.python_index.trusted_hosts",
    "sandbox.python_index.allowed_packages",
    "sandbox.python_index.find_links",
];
const LONGEST_TOOL: usize = 64;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Sandboxes {
    /// The template that each type of tool uses; that of `default` is used by all others.
    pub(crate) templates: BTreeMap<String, Name>,
    pub(crate) python_index: PythonIndex,
    pub(crate) env_cache: EnvCache,
    /// How long a request waits for a sandbox.
    pub(crate) claim_timeout: Option<Duration>,
    /// Of SPIFFE identities, in a cluster.
    pub(crate) trust_domain: Option<String>,
    pub(crate) warm_interpreters: Option<bool>,
    pub(crate) python: Option<PathBuf>,
    pub(crate) uv: Option<PathBuf>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PythonIndex {
    pub(crate) default_index: Option<Index>,
    pub(crate) extra_indices: Option<Vec<Index>>,
    pub(crate) trusted_hosts: Option<Vec<String>>,
    pub(crate) allowed_packages: Option<AllowedPackages>,
    pub(crate) find_links: Option<Vec<PathBuf>>,
    /// Only what is in `find_links`.
    pub(crate) no_index: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct EnvCache {
    pub(crate) max_envs_per_pod: Option<u64>,
    pub(crate) env_ttl: Option<Duration>,
    /// In bytes.
    pub(crate) max_disk_usage: Option<u64>,
}

impl Sandboxes {
    pub(super) fn over(self, below: Self) -> Self {
        let mut templates = below.templates;
        templates.extend(self.templates);
        let (index, index_below) = (self.python_index, below.python_index);
        let (cache, cache_below) = (self.env_cache, below.env_cache);
        Self {
            templates,
            python_index: PythonIndex {
                default_index: index.default_index.or(index_below.default_index),
                extra_indices: index.extra_indices.or(index_below.extra_indices),
                trusted_hosts: index.trusted_hosts.or(index_below.trusted_hosts),
                allowed_packages: index.allowed_packages.or(index_below.allowed_packages),
                find_links: index.find_links.or(index_below.find_links),
                no_index: index.no_index.or(index_below.no_index),
            },
            env_cache: EnvCache {
                max_envs_per_pod: cache.max_envs_per_pod.or(cache_below.max_envs_per_pod),
                env_ttl: cache.env_ttl.or(cache_below.env_ttl),
                max_disk_usage: cache.max_disk_usage.or(cache_below.max_disk_usage),
            },
            claim_timeout: self.claim_timeout.or(below.claim_timeout),
            trust_domain: self.trust_domain.or(below.trust_domain),
            warm_interpreters: self.warm_interpreters.or(below.warm_interpreters),
            python: self.python.or(below.python),
            uv: self.uv.or(below.uv),
        }
    }

    /// Sets the key, when it is one of this section.
    pub(super) fn set(&mut self, key: &str, text: &str, at: &str) -> Option<Result<(), Fault>> {
        let (index, cache) = (&mut self.python_index, &mut self.env_cache);
        let words = || text.split_whitespace();
        let set = match key {
            "sandbox.python_index.default_index" => {
                parse(text, at).map(|one| index.default_index = Some(one))
            }
            "sandbox.python_index.extra_indices" => {
                let all = words().map(|word| parse(word, at)).collect::<Result<_, _>>();
                all.map(|all| index.extra_indices = Some(all))
            }
            "sandbox.python_index.trusted_hosts" => {
                let all = words().map(|word| host(word, at)).collect::<Result<_, _>>();
                all.map(|all| index.trusted_hosts = Some(all))
            }
            "sandbox.python_index.allowed_packages" => AllowedPackages::parse(words())
                .map(|all| index.allowed_packages = Some(all))
                .map_err(|error| Fault::new(Kind::Invalid, format!("{at}: {error}"))),
            "sandbox.python_index.find_links" => {
                let all = words().map(|word| directory(word, at)).collect::<Result<_, _>>();
                all.map(|all| index.find_links = Some(all))
            }
            "sandbox.env_cache.max_envs_per_pod" => {
                number(text, at).map(|most| cache.max_envs_per_pod = Some(most))
            }
            "sandbox.env_cache.env_ttl" => parse::<Span>(text, at).map(|span| cache.env_ttl = Some(span.0)),
            "sandbox.env_cache.max_disk_usage" => {
                parse::<ByteSize>(text, at).map(|size| cache.max_disk_usage = Some(size.0))
            }
            "sandbox.claim_timeout" => parse::<Span>(text, at).map(|span| self.claim_timeout = Some(span.0)),
            "sandbox.trust_domain" => trust_domain(text, at).map(|domain| self.trust_domain = Some(domain)),
            NO_INDEX => parse(text, at).map(|none| index.no_index = Some(none)),
            WARM => parse(text, at).map(|warm| self.warm_interpreters = Some(warm)),
            "sandbox.python" => directory(text, at).map(|path| self.python = Some(path)),
            "sandbox.uv" => directory(text, at).map(|path| self.uv = Some(path)),
            _ => return key.strip_prefix(TEMPLATES).map(|tool| self.choose(tool, text, at)),
        };
        Some(set)
    }

    fn choose(&mut self, tool: &str, template: &str, at: &str) -> Result<(), Fault> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        if tool.is_empty() || tool.len() > LONGEST_TOOL || !tool.bytes().all(allowed) {
            return Err(Fault::new(
                Kind::Invalid,
                format!(
                    "{at}: the type of a tool has up to {LONGEST_TOOL} letters, digits, '_', '-' and '.'"
                ),
            ));
        }
        self.templates.insert(tool.to_owned(), parse(template, at)?);
        Ok(())
    }
}

fn directory(text: &str, at: &str) -> Result<PathBuf, Fault> {
    let path = PathBuf::from(text);
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(Fault::new(Kind::Invalid, format!("{at}: '{text}' is not an absolute path")))
    }
}

/// `host` or `host:port`, as uv takes it.
fn host(text: &str, at: &str) -> Result<String, Fault> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
    if text.bytes().all(allowed) && !text.starts_with('-') {
        Ok(text.to_owned())
    } else {
        Err(Fault::new(
            Kind::Invalid,
            format!("{at}: '{text}' is not a host: write host.example or host.example:8443"),
        ))
    }
}

/// As SPIFFE has it.
fn trust_domain(text: &str, at: &str) -> Result<String, Fault> {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_".contains(&byte);
    if !text.is_empty() && text.len() <= 255 && text.bytes().all(allowed) {
        Ok(text.to_owned())
    } else {
        Err(Fault::new(
            Kind::Invalid,
            format!(
                "{at}: '{text}' is not a trust domain: expected a-z, 0-9, '.', '-' and '_', as in cluster.local"
            ),
        ))
    }
}
