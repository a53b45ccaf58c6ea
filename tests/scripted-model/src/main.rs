//! `cubicle-tests-scripted-model SCRIPT.json`: the service by hand, until standard input ends.

use std::io::Read;

use cubicle_tests_scripted_model::{Script, ScriptedModel};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path =
        std::env::args().nth(1).ok_or("name a script: a file with {\"steps\": [{\"text\": \"hello\"}]}")?;
    let script: Script = serde_json::from_str(&std::fs::read_to_string(path)?)?;
    let model = ScriptedModel::start(script)?;
    println!("{}", model.url());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
