use std::path::Path;
use std::process::Command;

use crate::harness::{Task, skip, write};

fn git(directory: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .args(["-c", "user.name=Ada", "-c", "user.email=ada@example.org"])
        .args(arguments)
        .current_dir(directory)
        .output()
        .unwrap();
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn has_git(test: &str) -> bool {
    let there = Path::new("/usr/bin/git").exists();
    if !there {
        skip(test, "no git");
    }
    there
}

/// Two commits on `main`, the first of which has the tag `v1`.
fn origin(task: &Task) -> String {
    let path = task.directory.path().join("origin");
    write(&path.join("a.txt"), "one\n");
    git(&path, &["init", "--quiet", "--initial-branch", "main"]);
    git(&path, &["add", "."]);
    git(&path, &["commit", "--quiet", "-m", "first"]);
    git(&path, &["tag", "v1"]);
    write(&path.join("a.txt"), "two\n");
    git(&path, &["commit", "--quiet", "-a", "-m", "second"]);
    format!("file://{}", path.display())
}

const CHANGES: &str = "set -e; cat a.txt; printf 'three\\n' >a.txt; printf '\\000\\001' >new.bin; git add a.txt; \
                       git -c user.name=x -c user.email=x@y commit --quiet -m mine; echo later >untracked.txt";

#[test]
fn changes_of_a_repository_come_back_as_a_patch() {
    if !has_git("changes_of_a_repository_come_back_as_a_patch") {
        return;
    }
    let mut task = Task::shell(CHANGES);
    let url = origin(&task);
    task.assignment.repo = Some(url);
    let ran = task.run();
    ran.ended("success", 0, "");
    assert!(ran.tell().contains("two"), "{}", ran.tell());
    assert_eq!(ran.status.output_files[0].name, "changes.patch");
    let patch = ran.output("changes.patch");
    for word in ["-two", "+three", "GIT binary patch", "+later"] {
        assert!(patch.contains(word), "{word}: {patch}");
    }
    // It applies to what was cloned.
    let origin = ran.task.directory.path().join("origin");
    git(&origin, &["apply", ran.task.path().join("output/changes.patch").to_str().unwrap()]);
    assert_eq!(std::fs::read(origin.join("new.bin")).unwrap(), [0, 1]);
    assert_eq!(std::fs::read_to_string(origin.join("a.txt")).unwrap(), "three\n");
}

#[test]
fn a_tag_a_branch_or_a_commit_can_be_asked_for() {
    if !has_git("a_tag_a_branch_or_a_commit_can_be_asked_for") {
        return;
    }
    for (reference, content) in [("v1", "one"), ("main", "two"), ("", "one")] {
        let mut task = Task::shell("cat a.txt; git status --porcelain");
        let url = origin(&task);
        let first = git(&task.directory.path().join("origin"), &["rev-parse", "v1"]);
        let reference = if reference.is_empty() { &first } else { reference };
        task.assignment.repo = Some(format!("{url}@{reference}"));
        let ran = task.run();
        ran.ended("success", 0, "");
        assert_eq!(ran.status.summary, content);
        assert_eq!(ran.status.output_files, []);
    }
}

#[test]
fn a_repository_that_was_there_already_is_compared_with_its_beginning() {
    if !has_git("a_repository_that_was_there_already_is_compared_with_its_beginning") {
        return;
    }
    let task = Task::shell("echo more >>a.txt; exit 3");
    write(&task.path().join("repo/a.txt"), "one\n");
    git(&task.path().join("repo"), &["init", "--quiet"]);
    git(&task.path().join("repo"), &["add", "."]);
    git(&task.path().join("repo"), &["commit", "--quiet", "-m", "first"]);
    let ran = task.run();
    ran.ended("failed", 1, "exit code 3");
    assert!(ran.output("changes.patch").contains("+more"));
}

#[test]
fn what_cannot_be_cloned_is_a_failure_that_says_why() {
    if !has_git("what_cannot_be_cloned_is_a_failure_that_says_why") {
        return;
    }
    for (repo, word) in [
        ("file:///no/such/repository", "no/such/repository"),
        ("git@example.org:a/b", "https://"),
        ("http://127.0.0.1:1/x.git", "cannot be cloned"),
    ] {
        let mut task = Task::shell("echo never >output/x");
        task.assignment.repo = Some(repo.into());
        let ran = task.run();
        ran.ended("failed", 1, word);
        assert_eq!(ran.status.output_files, []);
    }
    let mut task = Task::shell("true");
    let url = origin(&task);
    task.assignment.repo = Some(format!("{url}@no-such-branch"));
    task.run().ended("failed", 1, "no-such-branch");
}
