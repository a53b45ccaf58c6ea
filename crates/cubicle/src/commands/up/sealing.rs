//! The keys that secrets are sealed with: what was named, or else a file in the data directory, made by the first start. A key
//! is never made anew where something was sealed with another one.

use std::io::ErrorKind;
use std::path::Path;

use cubicle_model::{Fault, Kind};
use cubicle_server::SealingKeys;
use cubicle_store::Store;

use super::home::{self, Home};
use crate::context::fill_with_random;
use crate::settings::Server;

const HOW_TO_MAKE: &str = "'head -c 32 /dev/urandom | base64' makes a key";

/// The keys that the settings name.
pub(super) fn named(asked: &Server) -> Result<Option<SealingKeys>, Fault> {
    if let Some(text) = &asked.secrets_key {
        return parse(text.expose(), "CUBICLE_SECRETS_KEY").map(Some);
    }
    let Some(path) = &asked.secrets_key_file else { return Ok(None) };
    let text = read(path)?.ok_or_else(|| {
        Fault::new(Kind::NotFound, format!("there is no file {} with keys for secrets", path.display()))
            .hint(format!("check server.secrets_key_file and CUBICLE_SECRETS_KEY_FILE; {HOW_TO_MAKE}"))
    })?;
    parse(&text, &path.display().to_string()).map(Some)
}

/// Those of the data directory.
pub(super) async fn own(home: &Home, store: &Store) -> Result<SealingKeys, Fault> {
    let path = home.sealing_key_file();
    let shown = path.display().to_string();
    if let Some(text) = read(&path)? {
        return parse(&text, &shown);
    }
    if let Some(sealed) = store.sealed_secrets().await?.first() {
        let text = format!(
            "the database holds secrets, as '{}' of the tenant '{}', and {shown}, the file with the key that opens them, \
             is not there",
            sealed.name, sealed.tenant
        );
        return Err(Fault::new(Kind::Conflict, text).hint(
            "put the file back, or take that of another server of this database; CUBICLE_SECRETS_KEY names a key too. If the \
             key is lost, start with a new one there, and set the secrets again",
        ));
    }
    let mut bits = [0; 32];
    fill_with_random(&mut bits);
    // On the disk for good before anything is sealed with it.
    home::write(&path, &format!("{}\n", SealingKeys::line(bits)))
        .and_then(|()| std::fs::File::open(home.path())?.sync_all())
        .map_err(|error| Fault::new(Kind::Denied, format!("cannot write {shown}: {error}")))?;
    Ok(SealingKeys::one(bits))
}

fn parse(text: &str, at: &str) -> Result<SealingKeys, Fault> {
    SealingKeys::parse(text).map_err(|error| {
        Fault::new(Kind::Invalid, format!("{at} does not hold keys for secrets: {error}")).hint(format!(
            "put back what it held, one key on a line; {HOW_TO_MAKE}, but does not open what another sealed"
        ))
    })
}

fn read(path: &Path) -> Result<Option<String>, Fault> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        // It is not text: whatever it is, it is no key.
        Err(error) if error.kind() == ErrorKind::InvalidData => Ok(Some("?".into())),
        Err(error) => Err(Fault::new(Kind::Denied, format!("cannot read {}: {error}", path.display()))),
    }
}
