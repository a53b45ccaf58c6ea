//! `cubicle.toml`: which one is read, and how it becomes settings.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use cubicle_model::{Fault, Kind};
use toml::{Table, Value};

use super::egress::{BUNDLES, ENABLED};
use super::keys::KEYS;
use super::sandbox::{LISTS, NO_INDEX, TEMPLATES, WARM};
use super::webhooks::ALLOW;
use super::{Settings, unknown};
use crate::environment::Environment;

const NAME: &str = "cubicle.toml";

/// The named file, which must be there, or else the first of the usual ones. The working directory is not
/// looked at: it may hold somebody else's code, and that must not choose its own isolation.
pub(super) fn read(named: Option<&Path>, environment: &Environment, root: bool) -> Result<Settings, Fault> {
    if let Some(path) = named {
        return parse(path, &load(path)?.ok_or_else(|| absent(path))?);
    }
    for path in usual(environment, root) {
        if let Some(text) = load(&path)? {
            return parse(&path, &text);
        }
    }
    Ok(Settings::default())
}

fn usual(environment: &Environment, root: bool) -> Vec<PathBuf> {
    let own = environment
        .path("XDG_CONFIG_HOME")
        .filter(|path| path.is_absolute())
        .or_else(|| environment.path("HOME").map(|home| home.join(".config")));
    // With sudo, HOME may still be an ordinary user's, and root does not take orders from there.
    let own = own.filter(|_| !root);
    own.into_iter()
        .map(|base| base.join("cubicle").join(NAME))
        .chain([Path::new("/etc/cubicle").join(NAME)])
        .collect()
}

fn load(path: &Path) -> Result<Option<String>, Fault> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => {
            Err(Fault::new(Kind::Invalid, format!("cannot read {}", path.display())).because(error))
        }
    }
}

fn absent(path: &Path) -> Fault {
    Fault::new(Kind::NotFound, format!("there is no configuration file {}", path.display()))
        .hint("check --config and CUBICLE_CONFIG")
}

fn parse(path: &Path, text: &str) -> Result<Settings, Fault> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        Fault::new(Kind::Invalid, format!("{} is not valid TOML: {}", path.display(), error.message()))
    })?;
    let mut settings = Settings::default();
    set_all(&mut settings, "", &table, path)?;
    Ok(settings)
}

fn set_all(settings: &mut Settings, above: &str, table: &Table, path: &Path) -> Result<(), Fault> {
    for (name, value) in table {
        let key = if above.is_empty() { name.clone() } else { format!("{above}.{name}") };
        if let Value::Table(inner) = value {
            set_all(settings, &key, inner, path)?;
            continue;
        }
        let named_by_the_operator = [BUNDLES, TEMPLATES].iter().any(|table| key.starts_with(table));
        if !named_by_the_operator && !KEYS.iter().any(|known| known.path == key) {
            if let Some(table) = nearly_a_table(above) {
                let fault = Fault::new(Kind::Invalid, format!("unknown key '{key}' in {}", path.display()));
                return Err(fault.hint(format!("did you mean '{table}{name}'?")));
            }
            return Err(unknown(&key, &path.display().to_string(), KEYS.iter().map(|known| known.path)));
        }
        let at = format!("{key} in {}", path.display());
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Integer(number) => number.to_string(),
            Value::Float(number) => number.to_string(),
            Value::Boolean(flag) if [ENABLED, NO_INDEX, WARM].contains(&key.as_str()) => flag.to_string(),
            Value::Array(list) if key == ALLOW || LISTS.contains(&key.as_str()) => {
                let texts: Option<Vec<&str>> = list.iter().map(Value::as_str).collect();
                let texts =
                    texts.filter(|texts| texts.iter().all(|text| !text.contains(char::is_whitespace)));
                texts
                    .ok_or_else(|| {
                        let wrong = format!("{at}: expected a list of texts without spaces");
                        Fault::new(Kind::Invalid, wrong)
                    })?
                    .join(" ")
            }
            Value::Boolean(_) | Value::Datetime(_) | Value::Array(_) | Value::Table(_) => {
                return Err(Fault::new(Kind::Invalid, format!("{at}: expected text or a number")));
            }
        };
        settings.set(&key, &text, &at)?;
    }
    Ok(())
}

/// Names of bundles and tools are the operator's, so a suggestion can only be about the table that they stand in.
fn nearly_a_table(table: &str) -> Option<&'static str> {
    let near = |known: &&str| strsim::jaro_winkler(table, known.trim_end_matches('.')) > 0.85;
    // Another table of the same section is no slip of the pen.
    let is_known = KEYS.iter().any(|key| key.path.starts_with(&format!("{table}.")));
    [BUNDLES, TEMPLATES].into_iter().find(near).filter(|_| table.contains('.') && !is_known)
}
