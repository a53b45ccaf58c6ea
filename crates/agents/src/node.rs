//! The node that runs an agent written in JavaScript. Sandboxes see the host's `/usr`; a node from elsewhere becomes part of the
//! agent.

use std::path::{Path, PathBuf};

use cubicle_model::{Fault, Kind};

use crate::program;

/// Where it lies in the agent's directory.
pub(crate) const FILE: &str = "node";

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Node {
    /// Every sandbox has it.
    OfTheHost,
    /// This file is to be copied.
    Own(PathBuf),
}

pub(crate) fn find(path: &str, title: &str, oldest: u32) -> Result<Node, Fault> {
    let help = format!(
        "install node {oldest} or newer, as with 'apt-get install nodejs', or put one into PATH, and try again"
    );
    let Some(node) = program::find(path, "node") else {
        return Err(Fault::new(Kind::NotFound, format!("{title} needs node, which is not here")).hint(help));
    };
    let version = program::output(&node, &["--version"])?;
    if major(&version).is_none_or(|major| major < oldest) {
        let version = version.trim();
        let text = format!("{title} needs node {oldest} or newer, and {} is {version}", node.display());
        return Err(Fault::new(Kind::Invalid, text).hint(help));
    }
    let real = node.canonicalize().unwrap_or(node);
    Ok(if is_seen_inside(&real) { Node::OfTheHost } else { Node::Own(real) })
}

fn major(version: &str) -> Option<u32> {
    version.trim().strip_prefix('v')?.split('.').next()?.parse().ok()
}

/// Below `/usr/local` an administrator may have put links to anywhere.
fn is_seen_inside(real: &Path) -> bool {
    real.starts_with("/usr")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fake_node(version: &str) -> tempfile::TempDir {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("node");
        std::fs::write(&path, format!("#!/bin/sh\necho {version}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        directory
    }

    #[test]
    fn a_node_that_is_too_old_or_missing_is_said() {
        let old = fake_node("v18.2.0");
        let found = find(old.path().to_str().unwrap(), "Gemini CLI", 20).unwrap_err();
        assert!(
            found.message().contains("v18.2.0") && found.way_out().unwrap().contains("node 20"),
            "{found}"
        );
        let found = find("/no/such/place", "Gemini CLI", 20).unwrap_err();
        assert!(found.message().contains("needs node"), "{found}");
    }

    #[test]
    fn a_node_from_elsewhere_is_taken_along() {
        let new = fake_node("v24.1.0");
        let found = find(new.path().to_str().unwrap(), "Gemini CLI", 20).unwrap();
        assert_eq!(found, Node::Own(new.path().canonicalize().unwrap().join("node")));
        assert!(is_seen_inside(Path::new("/usr/bin/node")));
    }
}
