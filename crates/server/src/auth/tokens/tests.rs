//! What is accepted and what is not. `vectors.json` holds tokens and keys that another implementation made (the `crypto`
//! of Node.js); the private keys are gone.

mod claims;
mod fetching;
mod rotation;
mod signatures;

use serde_json::{Value, json};

use super::settings::{TokenRequest, TokenSettings};

const ISSUER: &str = "https://id.example.org";

fn vectors() -> Value {
    serde_json::from_str(include_str!("vectors.json")).unwrap()
}

fn key_set_text(keys: &[Value]) -> String {
    json!({ "keys": keys }).to_string()
}

fn settings(change: impl FnOnce(&mut TokenRequest)) -> TokenSettings {
    let mut asked = TokenRequest {
        issuer: Some(ISSUER.into()),
        audience: Some("cubicle".into()),
        ..TokenRequest::default()
    };
    change(&mut asked);
    TokenSettings::parse(asked).unwrap().unwrap()
}
