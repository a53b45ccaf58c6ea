//! Python environments as this host and its operator want them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cubicle_envs::{Budget, EnvSettings, Index, Indexes};
use cubicle_model::Timestamp;

use crate::bundles;
use crate::environment::Environment;
use crate::settings::Settings;

/// Below the data directory.
const DIRECTORY: &str = "envs";
/// What uv needs of the environment: where certificates are, how names are resolved, and proxies. Nothing else is handed on,
/// as keys of providers may stand there.
const HANDED_ON: [&str; 11] = [
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "RES_OPTIONS",
    "LOCALDOMAIN",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];

/// Reads what pip and uv are configured with where the operator has said nothing: this blocks.
pub(crate) fn settings(
    said: &Settings,
    environment: &Environment,
    data_dir: &Path,
    clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
) -> EnvSettings {
    let mut settings = EnvSettings::new(data_dir.join(DIRECTORY), clock);
    let (sandbox, usual) = (&said.sandbox, Budget::default());
    settings.uv = sandbox.uv.clone();
    settings.python = sandbox.python.clone();
    settings.path = directories(environment.text("PATH").as_deref().unwrap_or_default());
    settings.managed_pythons = managed(environment, &settings.root);
    settings.variables = HANDED_ON
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), environment.text(name)?)))
        .filter(|(_, value)| !value.is_empty())
        .collect();
    settings.indexes = indexes(said, environment);
    settings.allowed_packages = sandbox.python_index.allowed_packages.clone().unwrap_or_default();
    let most = sandbox.env_cache.max_envs_per_pod.map(|most| usize::try_from(most).unwrap_or(usize::MAX));
    settings.budget = Budget {
        most: most.unwrap_or(usual.most),
        ttl: sandbox.env_cache.env_ttl.unwrap_or(usual.ttl),
        bytes: sandbox.env_cache.max_disk_usage.unwrap_or(usual.bytes),
    };
    settings
}

fn indexes(said: &Settings, environment: &Environment) -> Indexes {
    let own = &said.sandbox.python_index;
    let trusted_hosts = own.trusted_hosts.clone().unwrap_or_default();
    let find_links = own.find_links.clone().unwrap_or_default();
    let (mut first, mut more) = (own.default_index.clone(), own.extra_indices.clone());
    if first.is_none()
        && let Some(index) = &said.egress.python_index
    {
        first = index.to_string().parse().ok();
    }
    if first.is_none() {
        let found = bundles::python_indexes(environment);
        // What cannot be read was remarked on with the bundles.
        first = found.first.and_then(|text| text.parse().ok());
        more = more
            .or_else(|| Some(found.more.iter().filter_map(|text| text.parse().ok()).collect::<Vec<Index>>()));
    }
    Indexes {
        default_index: first,
        extra_indices: more.unwrap_or_default(),
        trusted_hosts,
        find_links,
        no_index: own.no_index.unwrap_or(false),
    }
}

fn directories(path: &str) -> Vec<PathBuf> {
    path.split(':').filter(|part| part.starts_with('/')).map(PathBuf::from).collect()
}

/// Where uv keeps interpreters that it was told to install.
fn managed(environment: &Environment, root: &Path) -> Vec<PathBuf> {
    let named = environment.path("UV_PYTHON_INSTALL_DIR");
    let shared = environment
        .path("XDG_DATA_HOME")
        .or_else(|| environment.path("HOME").map(|home| home.join(".local/share")));
    let usual = shared.map(|directory| directory.join("uv/python"));
    named.into_iter().chain(usual).chain([root.join("python")]).filter(|path| path.is_absolute()).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn from(toml: &str, variables: &[(&str, &str)]) -> EnvSettings {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cubicle.toml");
        std::fs::write(&path, toml).unwrap();
        // A home directory of its own keeps what this host has configured away.
        let home = directory.path().to_str().unwrap().to_owned();
        let mut all = vec![("HOME", home.as_str()), ("PIP_CONFIG_FILE", "/dev/null"), ("UV_NO_CONFIG", "1")];
        all.extend(variables);
        let environment = Environment::from_pairs(all);
        let said = Settings::load(Some(&path), &environment, false).unwrap();
        settings(&said, &environment, Path::new("/srv/cubicle"), Arc::new(|| Timestamp::UNIX_EPOCH))
    }

    #[test]
    fn what_the_operator_says_counts_more_than_what_the_host_has() {
        let host = [("PIP_INDEX_URL", "https://ada:hunter2@pip.example/simple")];
        let shown = |settings: &EnvSettings| {
            settings.indexes.default_index.as_ref().map(|index| index.address().to_string())
        };
        assert_eq!(shown(&from("", &[])), None);
        assert_eq!(shown(&from("", &host)).as_deref(), Some("https://pip.example/simple"));
        let egress = "[egress]\npython_index = 'https://egress.example/simple'";
        assert_eq!(shown(&from(egress, &host)).as_deref(), Some("https://egress.example/simple"));
        let own = format!("{egress}\n[sandbox.python_index]\ndefault_index = 'https://own.example/simple'");
        assert_eq!(shown(&from(&own, &host)).as_deref(), Some("https://own.example/simple"));
        // Further indexes of the host belong to its own first one.
        let extra = [("PIP_EXTRA_INDEX_URL", "https://extra.example/simple")];
        assert_eq!(from("", &extra).indexes.extra_indices.len(), 1);
        assert_eq!(from(&own, &extra).indexes.extra_indices.len(), 0);
    }

    #[test]
    fn uv_gets_certificates_and_proxies_and_no_keys() {
        let variables =
            [("SSL_CERT_FILE", "/srv/roots.pem"), ("HTTPS_PROXY", ""), ("OPENAI_API_KEY", "hunter2")];
        let settings = from("", &variables);
        assert_eq!(settings.variables.keys().collect::<Vec<_>>(), ["SSL_CERT_FILE"]);
    }

    #[test]
    fn the_budget_is_the_operators_or_the_usual_one() {
        let toml = "[sandbox.env_cache]\nmax_envs_per_pod = 3\nenv_ttl = '1h'\nmax_disk_usage = '1Gi'";
        let budget = Budget { most: 3, ttl: Duration::from_secs(3600), bytes: 1 << 30 };
        assert_eq!(from(toml, &[]).budget, budget);
        assert_eq!(from("", &[]).budget, Budget::default());
        assert_eq!(from("", &[]).root, Path::new("/srv/cubicle/envs"));
        assert_eq!(from("", &[("PATH", "/a:b:/c")]).path, [Path::new("/a"), Path::new("/c")]);
    }
}
