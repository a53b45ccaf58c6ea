//! What is said about the way out of sandboxes.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cubicle_model::{Fault, Name};

use super::parse;
use crate::bundles;
use cubicle_model::egress::WebAddress;

/// Bundles are a table of their own in the file, and have no variables.
pub(super) const BUNDLES: &str = "egress.bundles.";
/// The one setting that is true or false.
pub(super) const ENABLED: &str = "egress.enabled";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Egress {
    /// Whether sandboxes have a way out at all.
    pub(crate) enabled: Option<bool>,
    pub(crate) python_index: Option<WebAddress>,
    pub(crate) python_extra_indexes: Option<Vec<WebAddress>>,
    pub(crate) npm_registry: Option<Vec<WebAddress>>,
    pub(crate) mcp_base_url: Option<WebAddress>,
    pub(crate) obj_url: Option<WebAddress>,
    pub(crate) access_log: Option<PathBuf>,
    pub(crate) extra_roots: Option<PathBuf>,
    /// Bundles of the operator, whose texts can be read.
    pub(crate) bundles: BTreeMap<Name, String>,
}

impl Egress {
    pub(super) fn over(self, below: Self) -> Self {
        let mut bundles = below.bundles;
        bundles.extend(self.bundles);
        Self {
            enabled: self.enabled.or(below.enabled),
            python_index: self.python_index.or(below.python_index),
            python_extra_indexes: self.python_extra_indexes.or(below.python_extra_indexes),
            npm_registry: self.npm_registry.or(below.npm_registry),
            mcp_base_url: self.mcp_base_url.or(below.mcp_base_url),
            obj_url: self.obj_url.or(below.obj_url),
            access_log: self.access_log.or(below.access_log),
            extra_roots: self.extra_roots.or(below.extra_roots),
            bundles,
        }
    }

    /// Sets the key, when it is one of egress.
    pub(super) fn set(&mut self, key: &str, text: &str, at: &str) -> Option<Result<(), Fault>> {
        let one = || parse::<WebAddress>(text, at).map(Some);
        let several =
            || text.split_whitespace().map(|word| parse(word, at)).collect::<Result<_, _>>().map(Some);
        let file = || Ok(Some(PathBuf::from(text)));
        let set = match key {
            ENABLED => parse(text, at).map(|enabled| self.enabled = Some(enabled)),
            "egress.python_index" => one().map(|index| self.python_index = index),
            "egress.python_extra_indexes" => several().map(|indexes| self.python_extra_indexes = indexes),
            "egress.npm_registry" => several().map(|registries| self.npm_registry = registries),
            "egress.mcp_base_url" => one().map(|address| self.mcp_base_url = address),
            "egress.obj_url" => one().map(|address| self.obj_url = address),
            "egress.access_log" => file().map(|path| self.access_log = path),
            "egress.extra_roots" => file().map(|path| self.extra_roots = path),
            _ => return key.strip_prefix(BUNDLES).map(|name| self.define(name, text, at)),
        };
        Some(set)
    }

    fn define(&mut self, name: &str, text: &str, at: &str) -> Result<(), Fault> {
        let name: Name = parse(name, at)?;
        bundles::checked(&name, text).map_err(|fault| {
            let placed = Fault::new(fault.kind(), format!("{at}: {}", fault.message()));
            match fault.way_out() {
                Some(hint) => placed.hint(hint),
                None => placed,
            }
        })?;
        self.bundles.insert(name, text.to_owned());
        Ok(())
    }
}
