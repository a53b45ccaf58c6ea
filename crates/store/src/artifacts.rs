//! Files that outlive their sandbox. The bytes are in the object store; here is what they are and whose.

use cubicle_model::{ArtifactId, Fault, Name, Timestamp, UserName};

use crate::sql::{Row, values};
use crate::{Context, Page, Store, audit, not_found};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifact {
    pub id: ArtifactId,
    pub tenant: Name,
    pub user: UserName,
    pub kind: ArtifactKind,
    pub name: String,
    /// What it came from: a sandbox, an exec.
    pub subject: String,
    pub media_type: String,
    pub size: u64,
    /// In hexadecimal.
    pub sha256: String,
    /// Where the object store has it.
    pub location: String,
    pub created_at: Timestamp,
    pub expires_at: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArtifactKind {
    /// The journal of a sandbox that is gone.
    Journal,
    File,
}

impl ArtifactKind {
    const ALL: [Self; 2] = [Self::Journal, Self::File];

    pub fn name(self) -> &'static str {
        match self {
            Self::Journal => "journal",
            Self::File => "file",
        }
    }
}

const COLUMNS: &str =
    "id, tenant, user_name, kind, name, subject, media_type, size, sha256, location, created_at, expires_at";

impl Store {
    pub async fn create_artifact(&self, context: Context, artifact: Artifact) -> Result<(), Fault> {
        self.write(move |sql| {
            sql.run(
                "INSERT INTO artifacts (id, tenant, user_name, kind, name, subject, media_type, size, sha256, location, \
                 created_at, expires_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
                values![
                    artifact.id,
                    &artifact.tenant,
                    &artifact.user,
                    artifact.kind.name(),
                    &artifact.name,
                    &artifact.subject,
                    &artifact.media_type,
                    artifact.size,
                    &artifact.sha256,
                    &artifact.location,
                    context.now,
                    artifact.expires_at,
                ],
            )?;
            if artifact.kind == ArtifactKind::File {
                audit::append(sql, &context, "artifact.create", &artifact.id.to_string(), "ok", None)?;
            }
            Ok(())
        })
        .await
    }

    pub async fn artifact(&self, id: ArtifactId) -> Result<Option<Artifact>, Fault> {
        self.read(move |sql| {
            let statement = format!("SELECT {COLUMNS} FROM artifacts WHERE id = ?1");
            sql.row(&statement, values![id])?.map(read).transpose()
        })
        .await
    }

    /// The newest of a kind that came from a subject.
    pub async fn artifact_of(&self, subject: String, kind: ArtifactKind) -> Result<Option<Artifact>, Fault> {
        self.read(move |sql| {
            let statement = format!(
                "SELECT {COLUMNS} FROM artifacts WHERE subject = ?1 AND kind = ?2 ORDER BY created_at DESC LIMIT 1"
            );
            sql.row(&statement, values![&subject, kind.name()])?.map(read).transpose()
        })
        .await
    }

    pub async fn artifacts(&self, tenant: Name, page: Page) -> Result<Vec<Artifact>, Fault> {
        self.read(move |sql| {
            let statement =
                format!("SELECT {COLUMNS} FROM artifacts WHERE tenant = ?1 AND id > ?2 ORDER BY id LIMIT ?3");
            let rows = sql.rows(&statement, values![&tenant, page.after(), page.one_more()])?;
            rows.into_iter().map(read).collect()
        })
        .await
    }

    /// Those whose time is over. The bytes go first, then the row.
    pub async fn expired_artifacts(&self, now: Timestamp, most: u32) -> Result<Vec<Artifact>, Fault> {
        self.read(move |sql| {
            let statement = format!(
                "SELECT {COLUMNS} FROM artifacts WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2"
            );
            sql.rows(&statement, values![now, most])?.into_iter().map(read).collect()
        })
        .await
    }

    pub async fn delete_artifact(&self, context: Context, id: ArtifactId) -> Result<(), Fault> {
        self.write(move |sql| {
            if sql.run("DELETE FROM artifacts WHERE id = ?1", values![id])? == 0 {
                return Err(not_found("artifact"));
            }
            audit::append(sql, &context, "artifact.delete", &id.to_string(), "ok", None)
        })
        .await
    }
}

fn read(mut row: Row) -> Result<Artifact, Fault> {
    Ok(Artifact {
        id: row.parsed()?,
        tenant: row.parsed()?,
        user: row.parsed()?,
        kind: row.one_of(&ArtifactKind::ALL, ArtifactKind::name)?,
        name: row.text()?,
        subject: row.text()?,
        media_type: row.text()?,
        size: row.unsigned()?,
        sha256: row.text()?,
        location: row.text()?,
        created_at: row.time()?,
        expires_at: row.optional_time()?,
    })
}
