//! What tenants call environments. Names of one tenant mean nothing to another.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use cubicle_model::{Name, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{EnvKey, files};

const LONGEST: u64 = 1024 * 1024;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Named {
    pub(crate) key: EnvKey,
    pub(crate) requirements: Vec<String>,
    /// When the tenant first got it; others may have had it before.
    pub(crate) created_at: Timestamp,
    pub(crate) last_used_at: Timestamp,
}

/// All names, in memory and in a file each.
#[derive(Debug)]
pub(crate) struct Names {
    directory: PathBuf,
    tenants: HashMap<Name, BTreeMap<Name, Named>>,
}

impl Names {
    /// Reads what is there; what cannot be read is nobody's name.
    pub(crate) fn load(directory: PathBuf) -> Self {
        let mut tenants: HashMap<Name, BTreeMap<Name, Named>> = HashMap::new();
        for below in files::entries(&directory) {
            let Some(tenant) = name_of(&below) else { continue };
            for path in files::entries(&below) {
                let named =
                    files::read(&path, LONGEST).ok().and_then(|text| serde_json::from_str(&text).ok());
                if let (Some(name), Some(named)) = (name_of(&path.with_extension("")), named) {
                    tenants.entry(tenant.clone()).or_default().insert(name, named);
                }
            }
        }
        Self { directory, tenants }
    }

    pub(crate) fn get(&self, tenant: &Name, name: &Name) -> Option<&Named> {
        self.tenants.get(tenant)?.get(name)
    }

    pub(crate) fn of(&self, tenant: &Name) -> impl Iterator<Item = (&Name, &Named)> {
        self.tenants.get(tenant).into_iter().flatten()
    }

    /// Whether anybody calls it something.
    pub(crate) fn mention(&self, key: &EnvKey) -> bool {
        self.tenants.values().flat_map(BTreeMap::values).any(|named| named.key == *key)
    }

    /// Gives the name to this environment, or says that it was used again. Only what is new is written at once.
    pub(crate) fn give(&mut self, tenant: &Name, name: &Name, named: Named) -> std::io::Result<()> {
        let all = self.tenants.entry(tenant.clone()).or_default();
        if let Some(known) = all.get_mut(name).filter(|known| known.key == named.key) {
            known.last_used_at = named.last_used_at;
            return Ok(());
        }
        let path = self.directory.join(tenant.as_str());
        files::make_directory(&path, 0o700)?;
        files::write(&path.join(format!("{name}.json")), &serde_json::to_vec(&named)?, 0o600)?;
        all.insert(name.clone(), named);
        Ok(())
    }

    pub(crate) fn take_back(&mut self, tenant: &Name, name: &Name) -> std::io::Result<Option<Named>> {
        let Some(named) = self.tenants.get_mut(tenant).and_then(|all| all.remove(name)) else {
            return Ok(None);
        };
        remove(&self.directory.join(tenant.as_str()).join(format!("{name}.json")))?;
        Ok(Some(named))
    }

    /// Takes the environment back from everybody.
    pub(crate) fn forget(&mut self, key: &EnvKey) {
        for (tenant, all) in &mut self.tenants {
            let gone: Vec<Name> =
                all.iter().filter(|(_, named)| named.key == *key).map(|(name, _)| name.clone()).collect();
            for name in gone {
                all.remove(&name);
                // A name that stays on disk leads to no tree, and is forgotten at the next start.
                _ = remove(&self.directory.join(tenant.as_str()).join(format!("{name}.json")));
            }
        }
    }

    /// Writes when they were last used.
    pub(crate) fn keep_times(&self) {
        for (tenant, all) in &self.tenants {
            for (name, named) in all {
                let path = self.directory.join(tenant.as_str()).join(format!("{name}.json"));
                if let Ok(text) = serde_json::to_vec(named)
                    && files::read(&path, LONGEST).ok().is_none_or(|known| known.as_bytes() != text)
                {
                    // The times are a little older after a restart then.
                    _ = files::write(&path, &text, 0o600);
                }
            }
        }
    }

    /// Names without a tree.
    pub(crate) fn retain(&mut self, is_there: impl Fn(&EnvKey) -> bool) {
        let keys: Vec<EnvKey> =
            self.tenants.values().flat_map(BTreeMap::values).map(|named| named.key.clone()).collect();
        for key in keys.iter().filter(|key| !is_there(key)) {
            self.forget(key);
        }
    }
}

fn name_of(path: &Path) -> Option<Name> {
    path.file_name()?.to_str()?.parse().ok()
}

fn remove(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(number: u8, second: i64) -> Named {
        let at = Timestamp::from_second(second).unwrap();
        Named { key: EnvKey::of(&[number]), requirements: vec!["a".into()], created_at: at, last_used_at: at }
    }

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    #[test]
    fn names_survive_in_their_files_and_belong_to_one_tenant() {
        let directory = tempfile::tempdir().unwrap();
        let mut names = Names::load(directory.path().to_owned());
        names.give(&name("acme"), &name("data"), named(1, 10)).unwrap();
        names.give(&name("acme"), &name("data"), named(1, 20)).unwrap();
        names.give(&name("other"), &name("data"), named(2, 10)).unwrap();
        names.keep_times();
        std::fs::write(directory.path().join("acme/torn.json"), "{\"key\":").unwrap();
        let mut names = Names::load(directory.path().to_owned());
        let of_acme: Vec<_> = names.of(&name("acme")).collect();
        assert_eq!(of_acme.len(), 1);
        assert_eq!((of_acme[0].1.created_at.as_second(), of_acme[0].1.last_used_at.as_second()), (10, 20));
        names.forget(&EnvKey::of(&[1]));
        assert!(names.get(&name("acme"), &name("data")).is_none() && names.mention(&EnvKey::of(&[2])));
        names.take_back(&name("other"), &name("data")).unwrap().unwrap();
        let names = Names::load(directory.path().to_owned());
        assert_eq!(names.of(&name("other")).count() + names.of(&name("acme")).count(), 0);
    }
}
