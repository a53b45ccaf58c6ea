//! Files that code made.

use std::collections::BTreeMap;

use cubicle_guest::client::Guest;
use cubicle_guest::wire::execute::{FileReference, Produced};
use cubicle_model::{ArtifactId, Fault, Kind};
use cubicle_store::{Artifact, ArtifactKind, Exec};
use tracing::info;

use crate::app::App;

/// Of files that are too large for an answer, so much is kept of one execution whose sandbox goes away.
const MOST_KEPT: u64 = 1024 * 1024 * 1024;

/// Files of the working directory and the output directory.
#[derive(Debug, Default)]
pub(crate) struct Made {
    pub(crate) produced: Produced,
    /// By name: those that outlive their sandbox.
    pub(crate) kept: BTreeMap<String, ArtifactId>,
}

impl App {
    /// What an exec made. Where its sandbox goes away, what does not fit into the answer is kept.
    pub(crate) async fn made_by(&self, guest: &Guest, exec: &Exec, goes_away: bool) -> Made {
        let produced = match guest.produced(exec.id).await {
            Ok(produced) => produced,
            Err(error) => {
                info!(exec = %exec.id, %error, "the files that code made cannot be looked at");
                let produced = Produced { files_incomplete: true, ..Produced::default() };
                return Made { produced, kept: BTreeMap::new() };
            }
        };
        let mut made = Made { produced, kept: BTreeMap::new() };
        if !goes_away {
            return made;
        }
        let mut room = MOST_KEPT;
        for file in &made.produced.files_referenced {
            let Some(left) = room.checked_sub(file.bytes) else { continue };
            match self.keep_file(guest, exec, file).await {
                Ok(id) => {
                    room = left;
                    made.kept.insert(file.name.clone(), id);
                }
                Err(fault) => info!(exec = %exec.id, error = %fault, "a file that code made cannot be kept"),
            }
        }
        let before = made.produced.files_referenced.len();
        // A reference to what nobody will ever read again would be a lie.
        made.produced.files_referenced.retain(|file| made.kept.contains_key(&file.name));
        made.produced.files_incomplete |= made.produced.files_referenced.len() < before;
        made
    }

    async fn keep_file(&self, guest: &Guest, exec: &Exec, file: &FileReference) -> Result<ArtifactId, Fault> {
        let id = ArtifactId::from_random(self.surroundings.bits());
        let location = format!("files/{id}");
        let body = guest.open_file(&file.path, None).await?.body;
        let written = self.blobs.keep_body(&location, body).await?;
        if written.size != file.bytes {
            self.blobs.remove(&location).await?;
            return Err(Fault::new(Kind::Conflict, "the file changed while it was read"));
        }
        let context = self.own_context();
        let retention = jiff::SignedDuration::try_from(self.settings.journal_retention).unwrap_or_default();
        let artifact = Artifact {
            id,
            tenant: exec.tenant.clone(),
            user: exec.user.clone(),
            kind: ArtifactKind::File,
            name: file.name.clone(),
            subject: exec.id.to_string(),
            media_type: "application/octet-stream".into(),
            size: written.size,
            sha256: written.sha256,
            location,
            created_at: context.now,
            expires_at: context.now.saturating_add(retention).ok(),
        };
        self.store.create_artifact(context, artifact).await?;
        Ok(id)
    }
}
