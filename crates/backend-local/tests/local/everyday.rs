//! What a sandbox is for: commands that use tools, fill a workspace and clear it again.

use cubicle_backend::Backend;
use cubicle_guest::client::{Guest, WriteFile};
use cubicle_model::Lifetime;

use crate::harness::{Host, output, place, run, skipped};

#[tokio::test]
async fn tools_of_the_host_work_inside() {
    let Some(host) = Host::with_sandboxes().await else { return };
    let backend = host.backend().await;
    let place = place(Lifetime::Bound);
    backend.ensure(&place).await.unwrap();
    let guest = backend.guest(place.id);
    let tools: &[(&str, &str, &str)] = &[
        (
            "git",
            "git init -q r && cd r && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x && git log --format=%s",
            "x\n",
        ),
        ("cc", "echo 'int main(void){return 7;}' > a.c && cc a.c -o a && ./a; echo $?", "7\n"),
        ("python3", "python3 -c 'import sqlite3, ssl, subprocess, multiprocessing; print(6 * 7)'", "42\n"),
        ("perl", "perl -e 'print 6 * 7, \"\\n\"'", "42\n"),
        ("make", "printf 'all:\\n\\t@echo made\\n' > Makefile && make", "made\n"),
        ("tar", "mkdir t && echo in > t/f && tar cf t.tar t && rm -r t && tar xf t.tar && cat t/f", "in\n"),
        ("curl", "curl --version > /dev/null && echo there", "there\n"),
        ("awk", "echo 20 22 | awk '{ print $1 + $2 }'", "42\n"),
    ];
    for (tool, script, expected) in tools {
        // What the host has outside of /usr is not inside.
        if run(&guest, &format!("command -v {tool}")).await.unwrap().stdout.is_empty() {
            skipped(&format!("the host has no {tool} in /usr"));
            continue;
        }
        assert_eq!(output(&guest, script).await, *expected, "{tool}");
    }
}

#[tokio::test]
async fn a_job_goes_into_the_workspace_and_comes_out_as_an_archive() {
    let Some(host) = Host::with_sandboxes().await else { return };
    let backend = host.backend().await;
    let place = place(Lifetime::Bound);
    backend.ensure(&place).await.unwrap();
    let guest = backend.guest(place.id);
    let how = WriteFile { parents: true, ..WriteFile::default() };
    for (name, text) in [("workspace.md", "# job"), ("todos.yaml", "- one"), ("documents/a.txt", "first")] {
        guest.write_file(&format!("/workspace/job_7/{name}"), text.as_bytes(), how).await.unwrap();
    }
    output(&guest, "echo second > job_7/documents/b.txt").await;
    let names = archived(&guest, "/workspace/job_7").await;
    for name in ["workspace.md", "todos.yaml", "documents/a.txt", "documents/b.txt"] {
        assert!(names.iter().any(|path| path.ends_with(name)), "{name} is not among {names:?}");
    }
}

async fn archived(guest: &Guest, path: &str) -> Vec<String> {
    let archive = guest.get_archive(path).await.unwrap().collect(1 << 20).await.unwrap();
    let mut archive = tar::Archive::new(&archive[..]);
    archive.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string()).collect()
}

#[tokio::test]
async fn the_workspace_is_where_a_command_starts_and_all_of_it_is_its_own() {
    let Some(host) = Host::with_sandboxes().await else { return };
    let backend = host.backend().await;
    let place = place(Lifetime::Bound);
    backend.ensure(&place).await.unwrap();
    let guest = backend.guest(place.id);
    assert_eq!(output(&guest, "pwd; ls -A").await, "/workspace\n.cache\ntools\n");
    let script = "mkdir -p tools/bin && printf '#!/bin/sh\\necho mine\\n' > tools/bin/own && chmod +x tools/bin/own && own";
    assert_eq!(output(&guest, script).await, "mine\n");
    // It may remove everything that is there, too.
    assert_eq!(output(&guest, "echo x > .cache/x; rm -rf .cache tools && ls -A | wc -l").await, "0\n");
    for place in ["/tmp", "/dev/shm", "/home/agent"] {
        assert_eq!(output(&guest, &format!("echo kept > {place}/f && cat {place}/f")).await, "kept\n");
    }
}
