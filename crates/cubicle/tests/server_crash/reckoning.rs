//! What must be so after everything.

use cubicle_tests_leftovers::{Company, Instance};
use serde_json::{Value, json};

use crate::client::{Server, eventually};
use crate::load::Load;

pub(crate) fn settle(server: &mut Server, load: Load) {
    let promises = load.finish();
    let wrong = promises.wrong.lock().expect("nobody panics with it");
    assert!(wrong.is_empty(), "{} things went wrong: {:#?}", wrong.len(), &wrong[..wrong.len().min(10)]);

    // No acknowledged write is gone, and no byte is lost or repeated.
    let execs = promises.execs.lock().expect("nobody panics with it");
    assert!(!execs.is_empty(), "nothing was done");
    for (id, expected) in execs.iter() {
        let exec = eventually("the end of an exec", || {
            let exec = server.get(&format!("/api/v1/execs/{id}")).ok();
            (exec["state"] == "ended").then_some(exec)
        });
        assert_eq!(exec["result"]["exit_code"], 0, "{exec}");
        let output = eventually("the output of an exec", || {
            let output = server.get(&format!("/api/v1/execs/{id}/output"));
            (output.status == 200).then_some(output.text)
        });
        assert_eq!(&output, expected, "{id}");
    }
    for secret in promises.keys.lock().expect("nobody panics with it").iter() {
        assert_eq!(server.with_key("GET", "/api/v1/whoami", &json!({}), secret).status, 200, "a key is gone");
    }
    for lease in promises.released.lock().expect("nobody panics with it").iter() {
        assert_eq!(server.get(&format!("/api/v1/leases/{lease}")).ok()["status"], "RELEASED");
    }

    // Whatever nobody was told of is given back, and then nothing is left of it.
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
