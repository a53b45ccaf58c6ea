//! One sandbox, and what is tried from inside of it.

use serde_json::{Value, json};

use crate::origin::REACHED;
use crate::world::World;

const PRELUDE: &str = include_str!("inside.py");

/// A lease and its sandbox.
pub(crate) struct Inside<'a> {
    pub(crate) world: &'a World,
    pub(crate) lease: String,
    pub(crate) sandbox: String,
    pub(crate) key: String,
}

/// One attempt from inside.
pub(crate) struct Attack {
    /// What is true when it fails.
    pub(crate) name: &'static str,
    /// Python, after the prelude. `$API` stands for the port of the server's API.
    pub(crate) program: &'static str,
    /// What the bill says of it; nothing where the gateway never hears of it.
    pub(crate) denied: &'static str,
}

impl Inside<'_> {
    fn path(&self) -> String {
        format!("/api/v1/sandboxes/{}/execs", self.sandbox)
    }

    /// The exec of a program, when it has ended.
    pub(crate) fn exec(&self, asked: &Value) -> Value {
        self.world.server.with_key("POST", &self.path(), asked, &self.key).ok()
    }

    /// The exec of Python that has the prelude before it.
    pub(crate) fn python(&self, program: &str) -> Value {
        self.exec(&json!({ "command": self.with_prelude(program) }))
    }

    pub(crate) fn with_prelude(&self, program: &str) -> [String; 3] {
        let program = program.replace("$API", self.world.api_port());
        ["python3".to_owned(), "-c".to_owned(), format!("{PRELUDE}{program}")]
    }

    /// What Python printed that must end well.
    pub(crate) fn prints(&self, program: &str) -> String {
        said(&self.python(program))
    }

    /// What a shell printed that must end well.
    pub(crate) fn sh(&self, command: &str) -> String {
        said(&self.exec(&json!({ "command": command })))
    }

    pub(crate) fn bill(&self) -> Value {
        self.egress()["bill"].clone()
    }

    pub(crate) fn egress(&self) -> Value {
        let path = format!("/api/v1/leases/{}/egress", self.lease);
        self.world.server.with_key("GET", &path, &Value::Null, &self.key).ok()
    }

    /// Changes the policy. What it returns holds.
    pub(crate) fn allow(&self, policy: &str) {
        let path = format!("/api/v1/leases/{}/egress", self.lease);
        self.world.server.with_key("PUT", &path, &json!({ "policy": policy }), &self.key).ok();
    }

    /// Tries every one of the attacks, and says which of them did not fail as they must.
    pub(crate) fn withstands(&self, attacks: &[Attack]) {
        let mut failed = Vec::new();
        for attack in attacks {
            self.world.outside.forget();
            let exec = self.python(&format!("{}\nprint('tried')\n", attack.program));
            let out = exec["result"]["stdout"]["content"].as_str().unwrap_or_default();
            let denied = attack.denied.replace("$API", self.world.api_port());
            let denials = exec["result"]["egress"]["denials"].to_string();
            let trapped = self.world.trapped();
            // Shown when the test fails.
            eprintln!("--- {}\n{out}{denials}", attack.name);
            let why = match () {
                () if exec["result"]["exit_code"] != 0 || !out.ends_with("tried\n") => "it broke off",
                () if out.contains(REACHED) => "it got an answer",
                () if self.world.outside.heard_of("ATTACK") => "somebody outside heard of it",
                () if !trapped.is_empty() => "it came where nobody may come",
                () if !denials.contains(&denied) => "the bill does not say so",
                () => continue,
            };
            let error = exec["result"]["stderr"]["content"].as_str().unwrap_or_default();
            failed.push(format!("{}: {why}: {out}{error}{denials}{trapped:?}", attack.name));
        }
        assert!(failed.is_empty(), "{} of {} attacks:\n{}", failed.len(), attacks.len(), failed.join("\n\n"));
        // The way out works, so that the attacks did not fail for want of one.
        let good = self.prints("get('http://origin.test/well')");
        assert!(good.contains("REACHED GET /well"), "{good}");
    }
}

fn said(exec: &Value) -> String {
    assert_eq!(exec["result"]["exit_code"], 0, "{exec}");
    exec["result"]["stdout"]["content"].as_str().expect("it was waited for").to_owned()
}
