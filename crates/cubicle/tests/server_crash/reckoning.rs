//! What must be so after everything.

use serde_json::json;

use crate::afterwards;
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

    afterwards::nothing_is_left(server);
}
