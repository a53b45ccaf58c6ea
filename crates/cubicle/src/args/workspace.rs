//! `cubicle workspace` and `cubicle skills`: what outlives sandboxes.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};

use super::local::Shape;
use super::texts;

#[derive(Debug, Subcommand)]
pub(crate) enum Workspace {
    /// Write a file, or a directory with everything in it, to the shared workspace
    #[command(after_help = texts::WORKSPACE_PUT)]
    Put(WorkspacePut),
    /// Read a file of the shared workspace
    #[command(after_help = texts::WORKSPACE_GET)]
    Get(WorkspaceGet),
    /// List files of the shared workspace
    #[command(visible_alias = "list")]
    Ls(WorkspaceLs),
    /// Delete files of the shared workspace; their last versions are kept
    Rm(WorkspaceRm),
    /// Move a file or a directory of the shared workspace
    Mv(WorkspaceMv),
    /// List earlier versions of a file, also of one that was deleted
    #[command(after_help = texts::WORKSPACE_HISTORY)]
    History(WorkspaceHistory),
}

#[derive(Debug, Args)]
pub(crate) struct WorkspacePut {
    #[command(flatten)]
    pub(crate) shape: Shape,

    /// A file or a directory of this machine, or - for standard input
    #[arg(value_name = "FILE", value_hint = ValueHint::AnyPath)]
    pub(crate) from: PathBuf,

    /// Where it goes, relative to /workspace/shared; with a slash at the end, the directory it goes to
    #[arg(value_name = "PATH")]
    pub(crate) to: String,

    /// Refuse to replace a file
    #[arg(long)]
    pub(crate) must_be_new: bool,
}

#[derive(Debug, Args)]
pub(crate) struct WorkspaceGet {
    /// The file, relative to /workspace/shared
    #[arg(value_name = "PATH")]
    pub(crate) path: String,

    /// A file or a directory of this machine, or - for standard output
    #[arg(value_name = "FILE", default_value = "-", value_hint = ValueHint::AnyPath)]
    pub(crate) to: PathBuf,

    /// An earlier version, as 'cubicle workspace history' shows it
    #[arg(long, value_name = "N")]
    pub(crate) version: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct WorkspaceLs {
    #[command(flatten)]
    pub(crate) shape: Shape,

    /// A directory, relative to /workspace/shared
    #[arg(value_name = "PATH", default_value = "", hide_default_value = true)]
    pub(crate) path: String,

    /// Everything below it too
    #[arg(long, short)]
    pub(crate) recursive: bool,

    /// Instead of a directory: files whose path matches, as 'data/**/*.csv'
    #[arg(long, value_name = "PATTERN", conflicts_with_all = ["path", "recursive"])]
    pub(crate) glob: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct WorkspaceRm {
    /// Files or directories, relative to /workspace/shared
    #[arg(value_name = "PATH", required = true)]
    pub(crate) paths: Vec<String>,

    /// Directories with everything in them
    #[arg(long, short)]
    pub(crate) recursive: bool,
}

#[derive(Debug, Args)]
pub(crate) struct WorkspaceMv {
    /// What to move, relative to /workspace/shared
    #[arg(value_name = "FROM")]
    pub(crate) from: String,

    /// Its new path
    #[arg(value_name = "TO")]
    pub(crate) to: String,

    /// Replace a file that is there already; it is kept as a version
    #[arg(long)]
    pub(crate) overwrite: bool,
}

#[derive(Debug, Args)]
pub(crate) struct WorkspaceHistory {
    #[command(flatten)]
    pub(crate) shape: Shape,

    /// The file, relative to /workspace/shared
    #[arg(value_name = "PATH")]
    pub(crate) path: String,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Skills {
    /// List skills
    #[command(visible_alias = "ls")]
    List(Shape),
    /// Print the instructions of a skill
    Show(SkillShow),
    /// Create a skill; its instructions come from standard input
    #[command(after_help = texts::SKILLS_CREATE)]
    Create(SkillCreate),
}

#[derive(Debug, Args)]
pub(crate) struct SkillShow {
    #[command(flatten)]
    pub(crate) shape: Shape,

    /// The skill, as 'cubicle skills list' shows it
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct SkillCreate {
    #[command(flatten)]
    pub(crate) shape: Shape,

    /// Lower-case letters, digits and single hyphens
    #[arg(value_name = "NAME")]
    pub(crate) name: String,

    /// What it does and when to use it
    #[arg(long, value_name = "TEXT")]
    pub(crate) description: String,

    /// The instructions, in a file [default: standard input]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) content: Option<PathBuf>,

    /// Another file of the skill; may be repeated
    #[arg(long = "file", value_name = "FILE:PATH", value_parser = skill_file)]
    pub(crate) files: Vec<(PathBuf, String)>,
}

fn skill_file(given: &str) -> Result<(PathBuf, String), String> {
    match given.rsplit_once(':') {
        Some((file, path)) if !file.is_empty() && !path.is_empty() => Ok((file.into(), path.into())),
        _ => Err("expected FILE:PATH, as in chart.py:scripts/chart.py".into()),
    }
}
