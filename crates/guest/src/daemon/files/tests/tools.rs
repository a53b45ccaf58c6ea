//! Tools over a temporary directory that stands for the sandbox's root.

use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use super::World;

impl World {
    fn tool(&self, name: &str, arguments: Value) -> Result<Value, (String, String, String)> {
        let answer = self.ask("POST", &format!("/tools/{name}"), &[], arguments.to_string().as_bytes());
        match answer.status {
            200 => Ok(answer.json()),
            _ => {
                let error = answer.json()["error"].clone();
                let text = |field: &str| error[field].as_str().unwrap_or_default().to_owned();
                Err((text("code"), text("message"), text("hint")))
            }
        }
    }

    fn refused(&self, name: &str, arguments: Value) -> String {
        self.tool(name, arguments).unwrap_err().0
    }

    fn write(&self, name: &str, contents: impl AsRef<[u8]>) {
        let path = self.host("workspace").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, contents).unwrap();
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.host("workspace").join(name)).unwrap()
    }

    /// Everything below the workspace, so that a refused tool is seen to have changed nothing.
    fn snapshot(&self) -> Vec<(std::path::PathBuf, Vec<u8>)> {
        fn walk(at: &std::path::Path, into: &mut Vec<(std::path::PathBuf, Vec<u8>)>) {
            for entry in std::fs::read_dir(at).unwrap().map(Result::unwrap) {
                match entry.file_type().unwrap().is_dir() {
                    true => walk(&entry.path(), into),
                    false => into.push((entry.path(), std::fs::read(entry.path()).unwrap_or_default())),
                }
            }
        }
        let mut all = Vec::new();
        walk(&self.host("workspace"), &mut all);
        all.sort();
        all
    }
}

#[test]
fn a_part_of_a_file_is_read_by_lines() {
    let world = World::new();
    world.write("a.txt", "one\ntwo\nthree\nfour");
    let whole = world.tool("read_file", json!({ "path": "a.txt" })).unwrap();
    assert_eq!(whole["content"], "one\ntwo\nthree\nfour");
    assert_eq!(
        (&whole["total_lines"], &whole["truncated"], &whole["size"]),
        (&json!(4), &json!(false), &json!(18))
    );
    let part =
        world.tool("read_file", json!({ "path": "/workspace/a.txt", "offset": 2, "limit": 2 })).unwrap();
    assert_eq!((&part["content"], &part["next_offset"]), (&json!("two\nthree\n"), &json!(4)));
    assert_eq!((&part["first_line"], &part["last_line"]), (&json!(2), &json!(3)));
    let numbered = json!({ "path": "a.txt", "offset": 3, "line_numbers": true });
    assert_eq!(world.tool("read_file", numbered).unwrap()["content"], "     3\tthree\n     4\tfour");
    world.write("empty", "");
    let empty = world.tool("read_file", json!({ "path": "empty" })).unwrap();
    assert_eq!(
        (&empty["content"], &empty["total_lines"], &empty["truncated"]),
        (&json!(""), &json!(0), &json!(false))
    );
    assert_eq!(world.refused("read_file", json!({ "path": "a.txt", "offset": 9 })), "behind_the_end");
}

#[test]
fn a_file_that_is_too_long_for_one_answer_is_read_in_parts_without_loss() {
    let world = World::new();
    let text: String = (0..20_000).map(|n| format!("line {n} ünï {}\n", "x".repeat(n % 90))).collect();
    world.write("long", &text);
    let (mut read, mut offset) = (String::new(), Some(1));
    while let Some(next) = offset {
        let part = world.tool("read_file", json!({ "path": "long", "offset": next, "limit": 5000 })).unwrap();
        read.push_str(part["content"].as_str().unwrap());
        offset = part["next_offset"].as_u64();
    }
    assert_eq!(read, text);
    world.write("wide", "é".repeat(400_000));
    let wide = world.tool("read_file", json!({ "path": "wide" })).unwrap();
    assert_eq!(wide["content"].as_str().unwrap().chars().count(), 256 * 1024 / 2);
}

#[test]
fn bytes_that_are_no_text_are_named_so_and_readable_otherwise() {
    let world = World::new();
    world.write("binary", b"\x7fELF\0\x01\xff");
    world.write("latin", b"caf\xe9\n");
    world.write("wide", [0xff, 0xfe, b'h', 0, b'i', 0]);
    assert_eq!(world.refused("read_file", json!({ "path": "binary" })), "binary_file");
    assert_eq!(world.refused("read_file", json!({ "path": "latin" })), "not_utf8");
    let read = |path: &str, encoding: &str| {
        world.tool("read_file", json!({ "path": path, "encoding": encoding })).unwrap()["content"].clone()
    };
    assert_eq!(read("latin", "latin-1"), "café\n");
    assert_eq!(read("wide", "utf-16"), "hi");
    assert_eq!(read("binary", "base64"), "f0VMRgAB/w==");
    let part = json!({ "path": "binary", "encoding": "base64", "offset": 1, "limit": 3 });
    let part = world.tool("read_file", part).unwrap();
    assert_eq!((&part["content"], &part["next_offset"]), (&json!("RUxG"), &json!(4)));
}

#[test]
fn a_file_is_written_whole_with_its_directories_and_keeps_its_mode() {
    let world = World::new();
    let written =
        world.tool("write_file", json!({ "path": "a/b/c.sh", "content": "x", "mode": "0755" })).unwrap();
    assert_eq!(written, json!({ "path": "/workspace/a/b/c.sh", "size": 1, "created": true }));
    let mode = || std::fs::metadata(world.host("workspace/a/b/c.sh")).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), 0o755);
    let again =
        world.tool("write_file", json!({ "path": "a/b/c.sh", "content": "eA==", "encoding": "base64" }));
    assert_eq!((again.unwrap()["created"].clone(), mode()), (json!(false), 0o755));
    assert_eq!(world.read("a/b/c.sh"), "x");
    std::os::unix::fs::symlink("a/b/c.sh", world.host("workspace/link")).unwrap();
    world.tool("write_file", json!({ "path": "link", "content": "through" })).unwrap();
    assert_eq!(world.read("a/b/c.sh"), "through");
    assert!(std::fs::symlink_metadata(world.host("workspace/link")).unwrap().is_symlink());
    let before = world.snapshot();
    let table = [
        (json!({ "path": "a/b", "content": "" }), "not_a_file"),
        (json!({ "path": "a/b/c.sh", "content": "", "must_be_new": true }), "exists"),
        (json!({ "path": "n", "content": "%", "encoding": "base64" }), "invalid_argument"),
        (json!({ "path": "n", "content": "☃", "encoding": "latin-1" }), "invalid_argument"),
        (json!({ "path": "n", "content": "", "mode": "4755" }), "invalid_argument"),
        (json!({ "path": "n" }), "invalid_argument"),
        (json!({ "path": "n", "content": "", "nonsense": 1 }), "invalid_argument"),
        (json!({ "path": "/proc/self/x", "content": "" }), "path_not_allowed"),
        (json!({ "path": "n\u{0}", "content": "" }), "invalid_path"),
        (json!({ "path": "", "content": "" }), "invalid_path"),
    ];
    for (arguments, code) in table {
        assert_eq!(world.refused("write_file", arguments.clone()), code, "{arguments}");
    }
    assert_eq!(world.snapshot(), before);
}

#[test]
fn an_edit_replaces_what_is_there_once_or_as_often_as_was_said() {
    let world = World::new();
    world.write("a.py", "x = 1\ny = 1\n");
    let edit = |old: &str, new: &str, more: Value| {
        let mut arguments = json!({ "path": "a.py", "old_string": old, "new_string": new });
        arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        world.tool("edit_file", arguments)
    };
    let once = edit("x = 1", "x = 2", json!({})).unwrap();
    assert_eq!(once, json!({ "path": "/workspace/a.py", "replacements": 1, "lines": [1], "size": 12 }));
    assert_eq!(edit("= ", "== ", json!({ "replace_all": true })).unwrap()["lines"], json!([1, 2]));
    assert_eq!(edit("==", "=", json!({ "expected_replacements": 2 })).unwrap()["replacements"], 2);
    assert_eq!(world.read("a.py"), "x = 2\ny = 1\n");
}

#[test]
fn an_edit_that_is_not_clear_fails_loudly_and_changes_nothing() {
    let world = World::new();
    world.write("a.py", "def f():\n    return 1\n\ndef g():\n    return 1\n");
    world.write("dos", "one\r\ntwo\r\n");
    world.write("binary", b"a\0b");
    let before = world.snapshot();
    let edit = |path: &str, old: &str, more: Value| {
        let mut arguments = json!({ "path": path, "old_string": old, "new_string": "new" });
        arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        world.tool("edit_file", arguments).unwrap_err()
    };
    let (code, message, hint) = edit("a.py", "return 1", json!({}));
    assert_eq!(code, "not_unique");
    assert!(message.contains("2 times") && message.contains("lines 2, 5"), "{message}");
    assert!(hint.contains("replace_all"), "{hint}");
    let (code, message, _) = edit("a.py", "return 1", json!({ "expected_replacements": 3 }));
    assert!(code == "count_mismatch" && message.contains("not 3 times"), "{message}");
    let (code, _, hint) = edit("a.py", "  def f():\n  return 1", json!({}));
    assert!(code == "no_match" && hint.contains("line 1,"), "{hint}");
    let (code, _, hint) = edit("dos", "one\ntwo", json!({}));
    assert!(code == "no_match" && hint.contains("CRLF"), "{hint}");
    assert_eq!(edit("a.py", "nowhere", json!({})).0, "no_match");
    assert_eq!(edit("a.py", "", json!({})).0, "invalid_argument");
    assert_eq!(edit("a.py", "new", json!({})).0, "invalid_argument");
    assert_eq!(edit("missing", "x", json!({})).0, "not_found");
    assert_eq!(edit("binary", "a", json!({})).0, "binary_file");
    assert_eq!(edit("/workspace", "a", json!({})).0, "not_a_file");
    assert_eq!(world.snapshot(), before);
}

#[test]
fn files_and_directories_are_deleted_only_as_far_as_asked() {
    let world = World::new();
    world.write("d/e", "x");
    assert_eq!(world.refused("delete_file", json!({ "path": "d" })), "not_empty");
    assert_eq!(world.refused("delete_file", json!({ "path": "nothing" })), "not_found");
    assert_eq!(world.refused("delete_file", json!({ "path": "." })), "invalid_path");
    let deleted = world.tool("delete_file", json!({ "path": "d", "recursive": true })).unwrap();
    assert_eq!(deleted, json!({ "path": "/workspace/d", "type": "directory" }));
    assert!(!world.host("workspace/d").exists());
}

#[test]
fn a_directory_is_listed_in_order_up_to_a_limit() {
    let world = World::new();
    for name in ["b", "a/x", "a/y", ".hidden"] {
        world.write(name, "12");
    }
    let paths = |arguments: Value| {
        let listed = world.tool("list_dir", arguments).unwrap();
        let paths =
            listed["entries"].as_array().unwrap().iter().map(|e| e["path"].as_str().unwrap().to_owned());
        (paths.collect::<Vec<_>>().join(" ").replace("/workspace/", ""), listed["truncated"] == true)
    };
    assert_eq!(paths(json!({})), (".hidden a b".into(), false));
    assert_eq!(paths(json!({ "recursive": true, "hidden": false })), ("a a/x a/y b".into(), false));
    assert_eq!(paths(json!({ "recursive": true, "limit": 2 })), (".hidden a".into(), true));
    assert_eq!(world.refused("list_dir", json!({ "path": "b" })), "not_a_directory");
    assert_eq!(world.refused("list_dir", json!({ "limit": 0 })), "invalid_argument");
    assert_eq!(world.refused("list_dir", json!({ "path": "/proc" })), "path_not_allowed");
}

#[test]
fn names_are_found_by_their_pattern() {
    let world = World::new();
    for name in ["a.py", "src/b.py", "src/deep/c.py", "src/d.rs", ".git/e.py"] {
        world.write(name, "");
    }
    let found = |arguments: Value| {
        let found = world.tool("glob", arguments).unwrap();
        let paths = found["paths"].as_array().unwrap().iter().map(|path| path.as_str().unwrap().to_owned());
        (paths.collect::<Vec<_>>().join(" ").replace("/workspace/", ""), found["truncated"] == true)
    };
    assert_eq!(found(json!({ "pattern": "*.py" })).0, "a.py");
    assert_eq!(found(json!({ "pattern": "**/*.py" })).0, "a.py src/b.py src/deep/c.py");
    assert_eq!(found(json!({ "pattern": "*.{py,rs}", "path": "src" })).0, "src/b.py src/d.rs");
    assert_eq!(found(json!({ "pattern": "/workspace/s*/d*" })).0, "src/d.rs src/deep/");
    assert_eq!(found(json!({ "pattern": "**/e.py", "hidden": true })).0, ".git/e.py");
    assert_eq!(found(json!({ "pattern": ".git/*" })).0, ".git/e.py");
    assert_eq!(found(json!({ "pattern": "**/*.py", "limit": 2 })), ("a.py src/b.py".into(), true));
    assert!(!found(json!({ "pattern": "**/*.py", "limit": 3 })).1);
    assert_eq!(world.refused("glob", json!({ "pattern": "[a" })), "invalid_pattern");
    assert_eq!(world.refused("glob", json!({ "pattern": "*", "path": "nowhere" })), "not_found");
}

#[test]
fn lines_are_found_with_what_is_around_them() {
    let world = World::new();
    world.write("a.py", "import os\n\ndef main():\n    os.exit(1)\n");
    world.write("b/c.rs", "fn main() {}\r\n");
    world.write("binary", b"main\0main");
    world.write(".hidden", "main");
    let grep = |arguments: Value| world.tool("grep", arguments).unwrap();
    let found = grep(json!({ "pattern": r"\bmain\(", "context": 1 }));
    assert_eq!((&found["files_searched"], &found["files_skipped"]), (&json!(2), &json!(1)));
    assert_eq!(
        found["matches"],
        json!([
            { "path": "/workspace/a.py", "line": 3, "column": 5, "text": "def main():", "before": [""], "after": ["    os.exit(1)"] },
            { "path": "/workspace/b/c.rs", "line": 1, "column": 4, "text": "fn main() {}" },
        ])
    );
    let count = |arguments: Value| grep(arguments)["matches"].as_array().unwrap().len();
    assert_eq!(count(json!({ "pattern": "MAIN" })), 0);
    assert_eq!(count(json!({ "pattern": "MAIN", "ignore_case": true })), 2);
    assert_eq!(count(json!({ "pattern": "main", "include": ["*.rs"] })), 1);
    assert_eq!(count(json!({ "pattern": "main", "exclude": ["b/**"] })), 1);
    assert_eq!(count(json!({ "pattern": "main", "exclude": ["b"] })), 1);
    assert_eq!(count(json!({ "pattern": "exit(1)", "literal": true })), 1);
    assert_eq!(count(json!({ "pattern": "^fn.*\\{\\}$" })), 1);
    assert_eq!(count(json!({ "pattern": "\\Afn" })), 1);
    assert_eq!(count(json!({ "pattern": "os", "path": "a.py" })), 2);
    assert_eq!(count(json!({ "pattern": "main", "hidden": true })), 3);
    let cut = grep(json!({ "pattern": "main", "max_results": 1 }));
    assert_eq!((&cut["truncated"], &cut["truncated_by"]), (&json!(true), &json!("max_results")));
    assert_eq!(grep(json!({ "pattern": "main", "max_results": 2 }))["truncated"], false);
    world.write("wide", format!("{}needle{}", "x".repeat(5000), "y".repeat(5000)));
    let wide = grep(json!({ "pattern": "needle" }))["matches"][0].clone();
    assert!(wide["text"].as_str().unwrap().contains("xneedley") && wide["column"] == 5001);
    assert_eq!(world.refused("grep", json!({ "pattern": "(" })), "invalid_pattern");
    assert_eq!(world.refused("grep", json!({ "pattern": "" })), "invalid_argument");
    assert_eq!(world.refused("grep", json!({ "pattern": "x", "path": "nowhere" })), "not_found");
    assert_eq!(world.refused("grep", json!({ "pattern": "a{1000}{1000}{1000}" })), "invalid_pattern");
}

const PATCH: &str = "\
diff --git a/a.txt b/a.txt
--- a/a.txt
+++ b/a.txt
@@ -1,3 +1,3 @@
 one
-two
+zwei
 three
diff --git a/old b/old
deleted file mode 100644
--- a/old
+++ /dev/null
@@ -1 +0,0 @@
-gone
diff --git a/new.sh b/new.sh
new file mode 100755
--- /dev/null
+++ b/new.sh
@@ -0,0 +1,2 @@
+#!/bin/sh
+true
diff --git a/from b/to
similarity index 50%
rename from from
rename to to
--- a/from
+++ b/to
@@ -1 +1 @@
-x
+y
\\ No newline at end of file
";

fn patched_world() -> World {
    let world = World::new();
    world.write("a.txt", "one\ntwo\nthree\n");
    world.write("old", "gone\n");
    world.write("from", "x\n");
    world
}

#[test]
fn a_patch_changes_makes_deletes_and_renames_files() {
    let world = patched_world();
    let before = world.snapshot();
    let dry = world.tool("apply_patch", json!({ "patch": PATCH, "dry_run": true })).unwrap();
    assert_eq!(world.snapshot(), before);
    let done = world.tool("apply_patch", json!({ "patch": PATCH })).unwrap();
    assert_eq!(dry["files"], done["files"]);
    let actions: Vec<_> =
        done["files"].as_array().unwrap().iter().map(|file| file["action"].clone()).collect();
    assert_eq!(json!(actions), json!(["modified", "deleted", "created", "renamed"]));
    assert_eq!(world.read("a.txt"), "one\nzwei\nthree\n");
    assert_eq!((world.read("new.sh").as_str(), world.read("to").as_str()), ("#!/bin/sh\ntrue\n", "y"));
    assert!(!world.host("workspace/old").exists() && !world.host("workspace/from").exists());
    let mode = std::fs::metadata(world.host("workspace/new.sh")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o755);
}

#[test]
fn a_patch_that_does_not_fit_says_where_and_changes_nothing() {
    let world = patched_world();
    world.write("a.txt", "one\ndeux\nthree\n");
    let before = world.snapshot();
    let (code, message, _) = world.tool("apply_patch", json!({ "patch": PATCH })).unwrap_err();
    assert_eq!(code, "patch_rejected");
    assert!(
        message.contains("/workspace/a.txt: hunk 1 expects 'two' at line 2, where there is 'deux'"),
        "{message}"
    );
    let head = "--- a/a.txt\n+++ b/a.txt\n";
    let table = [
        ("nothing here".to_owned(), "invalid_patch"),
        ("@@ -1 +1 @@\n-a\n+b\n".to_owned(), "invalid_patch"),
        (format!("{head}@@ -1,2 +1 @@\none\n"), "invalid_patch"),
        (format!("{head}@@ -1 +1 @@\n"), "invalid_patch"),
        (format!("{head}@@ @@\n-nowhere\n"), "patch_rejected"),
        ("--- a/missing\n+++ b/missing\n@@ -1 +1 @@\n-a\n+b\n".to_owned(), "not_found"),
        ("--- /dev/null\n+++ b/old\n@@ -0,0 +1 @@\n+b\n".to_owned(), "exists"),
        ("--- a/old\n+++ /dev/null\n@@ -1 +0,0 @@\n-other\n".to_owned(), "patch_rejected"),
        ("--- a/../x\n+++ b/../x\n@@ -1 +1 @@\n-a\n+b\n".to_owned(), "invalid_path"),
        ("diff --git a/x b/x\nBinary files a/x and b/x differ\n".to_owned(), "invalid_patch"),
    ];
    for (patch, code) in table {
        assert_eq!(world.refused("apply_patch", json!({ "patch": patch })), code, "{patch}");
    }
    std::fs::create_dir(world.host("workspace/new.sh")).unwrap();
    assert_eq!(world.refused("apply_patch", json!({ "patch": PATCH.replace("two", "deux") })), "not_a_file");
    assert_eq!(world.snapshot(), before);
}

#[test]
fn a_patch_finds_its_place_in_a_file_that_has_moved_on() {
    let world = World::new();
    let body: String = (1..=40).map(|n| format!("line {n}\n")).collect();
    world.write("a", format!("new\nnew\n{body}"));
    let patch = "--- a/a\n+++ b/a\n@@ -10,3 +10,3 @@\n line 10\n-line 11\n+eleven\n line 12\n@@ -30,2 +30,2 @@\n line 30\n-line 31\n+thirty-one\n";
    let done = world.tool("apply_patch", json!({ "patch": patch })).unwrap();
    assert_eq!(done["files"][0]["moved_hunks"], json!({ "1": 2 }));
    assert!(
        world.read("a").contains("line 10\neleven\nline 12\n") && world.read("a").contains("\nthirty-one\n")
    );
    // Wrong counts, a lost space, another line end.
    world.write("b", "one\r\n\r\nthree\r\n");
    let patch = "--- b\n+++ b\n@@ -1,9 +1,7 @@\n one\n\n-three\n+drei\n";
    world.tool("apply_patch", json!({ "patch": patch })).unwrap();
    assert_eq!(world.read("b"), "one\r\n\r\ndrei\r\n");
    world.write("d/c", "x");
    let patch = "--- p/q/c\n+++ p/q/c\n@@\n-x\n+y\n+-- z\n";
    world.tool("apply_patch", json!({ "patch": patch, "strip": 2, "path": "d" })).unwrap();
    assert_eq!(world.read("d/c"), "y\n-- z\n");
}

#[test]
fn a_tool_that_is_none_and_arguments_that_are_none_are_refused() {
    let world = World::new();
    assert_eq!(world.refused("nonsense", json!({})), "no_such_tool");
    assert_eq!(world.ask("GET", "/tools/grep", &[], b"").status, 405);
    assert_eq!(world.ask("POST", "/tools/grep", &[], b"{").code(), "invalid_argument");
    std::os::unix::fs::symlink("../../secrets", world.host("workspace/out")).unwrap();
    assert_eq!(world.refused("read_file", json!({ "path": "out/key" })), "not_found");
    assert_eq!(world.refused("read_file", json!({ "path": "/proc/self/environ" })), "path_not_allowed");
    let found = world.tool("grep", json!({ "pattern": "secret", "path": "/" })).unwrap();
    assert_eq!(found["matches"], json!([]));
}
