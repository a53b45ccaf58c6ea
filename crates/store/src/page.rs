//! Part of a list, and where the next part begins.

/// `after` is the key of the last item of the page before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    pub after: Option<String>,
    pub limit: u32,
}

impl Page {
    pub const LARGEST: u32 = 1000;

    /// One more than is wanted shows whether there is a next page.
    pub(crate) fn one_more(&self) -> i64 {
        i64::from(self.limit.clamp(1, Self::LARGEST)) + 1
    }

    /// Every key is greater than this.
    pub(crate) fn after(&self) -> String {
        self.after.clone().unwrap_or_default()
    }
}
