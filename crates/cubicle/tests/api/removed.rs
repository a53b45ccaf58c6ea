//! A data directory that is removed under what lives in it.

use cubicle_tests_leftovers::{Company, Instance};
use serde_json::json;

use crate::client::{Server, eventually};

/// Also a test that fails leaves nothing behind, though its data directory is gone.
struct Forgotten(Instance);

impl Drop for Forgotten {
    fn drop(&mut self) {
        self.0.forget();
    }
}

impl Forgotten {
    fn leftovers(&self) -> Vec<String> {
        self.0.leftovers(&[], Company::WithOthers)
    }
}

fn busy(server: &Server) -> Forgotten {
    let (_, sandbox) = server.lease(&json!({}));
    let asked = json!({ "command": "sleep 600", "background": true });
    server.post(&format!("/api/v1/sandboxes/{sandbox}/execs"), &asked).ok();
    Forgotten(Instance::of(&server.host.data_dir()).expect("the data directory is in use"))
}

/// As often as it takes, because whoever lives there goes on making files.
fn remove(directory: &std::path::Path) {
    eventually("a removed directory", || {
        let removed = std::fs::remove_dir_all(directory);
        (removed.is_ok() || !directory.exists()).then_some(())
    });
}

#[test]
fn a_server_whose_data_directory_is_removed_destroys_what_it_has_and_ends() {
    let Some(mut server) = Server::start() else { return };
    // What an earlier server made is destroyed as well.
    let instance = busy(&server);
    server.kill();
    server.start_again();
    let (_, sandbox) = server.lease(&json!({}));
    assert_eq!(server.prints(&sandbox, "echo usable"), "usable\n");
    remove(&server.host.data_dir());
    assert_eq!(server.wait_for_death("a removed directory"), Some(125));
    server.waits_to_say("was removed under the server");
    eventually("an empty host", || instance.leftovers().is_empty().then_some(()));
}

#[test]
fn a_server_whose_data_directory_is_replaced_leaves_the_new_one_alone() {
    let Some(mut server) = Server::start() else { return };
    let instance = busy(&server);
    let (data, moved) = (server.host.data_dir(), server.host.scratch().join("moved"));
    std::fs::rename(&data, &moved).expect("the directory is ours");
    std::fs::create_dir(&data).expect("the place is free");
    std::fs::write(data.join("note"), "mine").expect("the directory is ours");
    assert_eq!(server.wait_for_death("a replaced directory"), Some(125));
    let names: Vec<_> = std::fs::read_dir(&data).expect("it is there").flatten().collect();
    assert_eq!(names.len(), 1, "{names:?}");
    std::fs::remove_dir_all(&data).expect("the directory is ours");
    std::fs::rename(&moved, &data).expect("the place is free");
    eventually("an empty host", || instance.leftovers().is_empty().then_some(()));
}

#[test]
fn sandboxes_end_by_themselves_when_nobody_can_find_them_any_more() {
    let Some(mut server) = Server::start() else { return };
    let instance = busy(&server);
    server.kill();
    remove(&server.host.data_dir());
    // Nobody is left who could remove their cgroups, which are empty then.
    eventually("sandboxes without a journal", || {
        let left = instance.leftovers();
        (!left.iter().any(|one| one.starts_with("process"))).then_some(())
    });
}
