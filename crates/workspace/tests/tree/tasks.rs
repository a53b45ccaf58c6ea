use std::os::unix::fs::PermissionsExt;

use cubicle_model::Kind;
use cubicle_model::task::TaskStatus;

use crate::{task, world};

#[test]
fn a_task_has_its_prompt_and_copies_of_its_context() {
    let world = world();
    world.tree.write("data/input.csv", b"1,2").unwrap();
    world.tree.write("scripts/lib/a.py", b"a").unwrap();
    world.tree.write("scripts/lib/deep/b.py", b"b").unwrap();
    let asked = ["data/input.csv", "/workspace/shared/scripts/lib", "data/none.csv", "data/input.csv"];
    let made = world.tree.create_task(task(1), "Do it.", &asked.map(String::from)).unwrap();
    assert_eq!(made.directory, world.tree.task_path(task(1)));
    assert_eq!(made.copied, ["data/input.csv", "scripts/lib/a.py", "scripts/lib/deep/b.py"]);
    assert_eq!(made.missing, ["data/none.csv"]);
    let read = |path: &str| std::fs::read_to_string(made.directory.join(path)).unwrap();
    assert_eq!(read("prompt.md"), "Do it.");
    assert_eq!(read("context/data/input.csv"), "1,2");
    assert_eq!(read("context/scripts/lib/deep/b.py"), "b");
    assert!(made.directory.join("output").is_dir());
    assert!(world.staging_is_empty());

    // What the worker does to its copy is nothing to the shared one.
    std::fs::write(made.directory.join("context/data/input.csv"), "changed").unwrap();
    assert_eq!(world.tree.read("data/input.csv", 0, None).unwrap().bytes, b"1,2");
}

#[test]
fn a_task_with_a_path_that_leads_out_is_not_made() {
    let world = world();
    let fault = world.tree.create_task(task(1), "x", &["../../secret".into()]).unwrap_err();
    assert_eq!(fault.kind(), Kind::Invalid);
    assert!(!world.tree.task_path(task(1)).exists() && world.staging_is_empty());
}

#[test]
fn a_task_that_is_made_twice_is_the_first_one() {
    let world = world();
    world.tree.create_task(task(1), "first", &[]).unwrap();
    world.tree.create_task(task(1), "second", &[]).unwrap();
    assert_eq!(world.tree.read_task_file(task(1), "prompt.md", 0, None).unwrap().bytes, b"first");
    assert!(world.staging_is_empty());
}

#[test]
fn what_came_of_a_task_is_read_as_it_is_found() {
    let world = world();
    let made = world.tree.create_task(task(1), "x", &[]).unwrap();
    assert_eq!(world.tree.status(task(1)).unwrap(), None);
    assert_eq!(world.tree.output_files(task(1)).unwrap(), []);
    let status = r##"{"status": "success", "started_at": "2024-01-15T10:00:00Z", "completed_at": "2024-01-15T10:02:25Z",
        "duration_seconds": 145, "exit_code": 0, "output_files": [{"name": "made up", "size": 1, "type": "text/plain"}],
        "summary": "Created spending analysis", "error_message": null}"##;
    std::fs::write(made.directory.join("status.json"), status).unwrap();
    assert_eq!(world.tree.status(task(1)).unwrap().unwrap().status, TaskStatus::Success);

    let output = made.directory.join("output");
    std::fs::create_dir(output.join("charts")).unwrap();
    std::fs::write(output.join("analyze_spending.py"), "print()").unwrap();
    std::fs::write(output.join("charts/spending.png"), b"\x89PNG\r\n\x1a\n....").unwrap();
    let files = world.tree.output_files(task(1)).unwrap();
    let told: Vec<_> = files.iter().map(|file| (file.name.as_str(), file.size, file.kind.as_str())).collect();
    assert_eq!(told, [("analyze_spending.py", 7, "text/x-python"), ("charts/spending.png", 12, "image/png")]);
    let mut text = String::new();
    std::io::Read::read_to_string(
        &mut world.tree.open_output(task(1), "analyze_spending.py").unwrap(),
        &mut text,
    )
    .unwrap();
    assert_eq!(text, "print()");
    assert_eq!(world.tree.open_output(task(1), "../prompt.md").unwrap_err().kind(), Kind::Invalid);
    assert_eq!(world.tree.open_output(task(2), "x").unwrap_err().kind(), Kind::NotFound);
}

#[test]
fn outputs_are_saved_whole_and_again() {
    let world = world();
    let made = world.tree.create_task(task(1), "x", &[]).unwrap();
    assert_eq!(world.tree.save_outputs(task(1)).unwrap(), Vec::<String>::new());
    let output = made.directory.join("output");
    std::fs::create_dir(output.join("d")).unwrap();
    std::fs::write(output.join("d/run.sh"), "#!").unwrap();
    std::fs::set_permissions(output.join("d/run.sh"), PermissionsExt::from_mode(0o777)).unwrap();
    let saved = format!("tasks/{}/d/run.sh", task(1));
    assert_eq!(world.tree.save_outputs(task(1)).unwrap(), std::slice::from_ref(&saved));
    std::fs::write(output.join("d/run.sh"), "#!new").unwrap();
    world.tree.save_outputs(task(1)).unwrap();
    assert_eq!(world.tree.read(&saved, 0, None).unwrap().bytes, b"#!new");
    let mode = std::fs::metadata(world.tree.shared_path().join(&saved)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o755);
    assert!(world.staging_is_empty());

    world.tree.remove_task(task(1)).unwrap();
    world.tree.remove_task(task(1)).unwrap();
    assert!(!made.directory.exists());
    assert_eq!(world.tree.read(&saved, 0, None).unwrap().bytes, b"#!new");
}
