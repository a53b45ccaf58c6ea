//! What an agent is told: the task, and where it is.

use std::path::Path;

pub(crate) const SUMMARY: &str = "summary.md";

/// The prompt with a frame that says what a person at a terminal would know.
pub(crate) fn framed(
    prompt: &str,
    task: &Path,
    shared: &Path,
    directory: &Path,
    skills: &[String],
) -> String {
    let (task, shared) = (task.display(), shared.display());
    let mut text = format!("{}\n\n---\n\nAbout the place where you work:\n", prompt.trim_end());
    let mut line = |words: String| {
        text.push_str("- ");
        text.push_str(&words);
        text.push('\n');
    };
    line(format!("Files that came with this task are in {task}/context/."));
    line(format!("Put everything that is a result into {task}/output/. Only that is handed over."));
    if directory.ends_with("repo") {
        line(format!(
            "The repository is in {}. What you change there is handed over as a patch; you need not commit.",
            directory.display()
        ));
    }
    line(format!(
        "{shared}/ has scripts, data and skills that are shared. You can read them, not change them."
    ));
    if !skills.is_empty() {
        line(format!("Skills that may help: {}.", skills.join(", ")));
    }
    line(format!(
        "When you are done, write {task}/output/{SUMMARY}: a few sentences on what you did and what came out."
    ));
    line("Nobody can answer questions. When something is unclear, decide, and say so in the summary.".into());
    text
}

/// What is asked when the summary is missing.
pub(crate) fn ask_for_summary(task: &Path) -> String {
    format!(
        "Write {}/output/{SUMMARY} now: a few sentences on what you did and what came out. Change nothing else.",
        task.display()
    )
}
