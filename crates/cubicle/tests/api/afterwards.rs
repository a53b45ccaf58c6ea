//! What must be so when everybody has gone.

use cubicle_tests_leftovers::{Company, Instance};
use serde_json::Value;

use crate::client::{Server, eventually};

/// Whatever nobody was told of is given back, and then nothing is left of it.
pub(crate) fn nothing_is_left(server: &Server) {
    for lease in all(server, "/api/v1/leases?status=ACTIVE") {
        server.delete(&format!("/api/v1/leases/{}", lease["lease_id"].as_str().expect("an id")));
    }
    eventually("an empty house", || {
        let standing = all(server, "/api/v1/sandboxes?");
        standing.iter().all(|sandbox| sandbox["state"] == "idle").then_some(())
    });
    let kept: Vec<String> = all(server, "/api/v1/sandboxes?")
        .iter()
        .map(|sandbox| sandbox["sandbox_id"].as_str().expect("an id").to_owned())
        .collect();
    let sandboxes: std::collections::BTreeSet<_> = kept.iter().collect();
    assert_eq!(sandboxes.len(), kept.len());
    let instance = Instance::of(&server.host.data_dir()).expect("the data directory is in use");
    let left = eventually("what is left on the host", || {
        let left = instance.leftovers(&kept, Company::WithOthers);
        left.is_empty().then_some(left)
    });
    assert_eq!(left, Vec::<String>::new());
}

/// Every page of a list.
fn all(server: &Server, path: &str) -> Vec<Value> {
    let mut items = Vec::new();
    let mut after = String::new();
    loop {
        let page = server.get(&format!("{path}&limit=1000{after}")).ok();
        items.extend(page["items"].as_array().expect("items").clone());
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => return items,
        }
    }
}
