//! The committed document is the one that the server serves.

#[test]
fn the_committed_openapi_document_is_the_served_one() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/openapi.json");
    let served = cubicle_server::openapi() + "\n";
    #[expect(clippy::disallowed_methods, reason = "a person asks for the new text")]
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, &served).expect("the document can be written");
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        committed == served,
        "docs/reference/openapi.json is not what the server serves: run UPDATE=1 cargo test -p cubicle-server"
    );
}

#[test]
fn every_operation_documents_its_errors_and_has_a_name_of_its_own() {
    let document: serde_json::Value =
        serde_json::from_str(&cubicle_server::openapi()).expect("the document is JSON");
    assert_eq!(document["openapi"], "3.1.0");
    let mut names = std::collections::BTreeMap::new();
    for (path, operations) in document["paths"].as_object().expect("paths") {
        for (method, operation) in operations.as_object().expect("operations") {
            let name = operation["operationId"].as_str().expect("an operation has a name").to_owned();
            let here = format!("{method} {path}");
            if let Some(there) = names.insert(name.clone(), here.clone()) {
                panic!("{here} and {there} are both called {name}");
            }
            let responses = operation["responses"].as_object().expect("an operation has answers");
            assert!(
                !responses.contains_key("default"),
                "{here} does not say which errors it may answer with"
            );
            let open = ["/health", "/ready", "/metrics"].contains(&path.as_str())
                || path.starts_with("/.well-known/");
            let expected: &[&str] = match path.as_str() {
                _ if open => &[],
                // Needs no key: its refusals are of its own.
                "/api/webhooks/worker-complete" => &["400", "404", "408", "409", "413", "500", "503"],
                _ => &["401", "403", "429", "500", "503"],
            };
            for status in expected {
                let part = responses[*status]["$ref"].as_str().expect("a refusal is a part of the document");
                let part = document.pointer(part.trim_start_matches('#')).expect("it is there");
                let body = &part["content"]["application/json"]["schema"]["$ref"];
                assert_eq!(body, "#/components/schemas/ErrorBody", "{here} {status}");
            }
        }
    }
}
