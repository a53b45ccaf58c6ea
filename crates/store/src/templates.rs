//! Templates: everybody's, and tenants' own.

use cubicle_model::template::Recipe;
use cubicle_model::{Fault, Kind, Name, Template, TemplateRef};

use crate::sql::{Row, Sql, json, values};
use crate::{Context, Page, Store, audit, not_found, stale};

const COLUMNS: &str = "at, recipe, created_at, updated_at, version";

impl Store {
    /// Makes or replaces a template. `version` is the one that the caller saw, 0 for "none yet"; absent means whatever
    /// there is. What is the same already is not written again.
    pub async fn put_template(
        &self,
        context: Context,
        at: TemplateRef,
        recipe: Recipe,
        version: Option<i64>,
    ) -> Result<Template, Fault> {
        self.write(move |sql| {
            let before = template_alone(sql, &at)?;
            let seen = before.as_ref().map_or(0, |template| template.version);
            if version.is_some_and(|version| version != seen) {
                return Err(stale("template"));
            }
            match before {
                Some(before) if before.recipe == recipe => return Ok(before),
                Some(_) => {
                    sql.run(
                        "UPDATE templates SET recipe = ?2, updated_at = ?3, version = version + 1 WHERE at = ?1",
                        values![&at, json(&recipe)?, context.now],
                    )?;
                }
                None => {
                    sql.run(
                        "INSERT INTO templates (at, owner, recipe, created_at, updated_at, version) \
                         VALUES (?1, ?2, ?3, ?4, ?4, 1)",
                        values![&at, at.owner.clone(), json(&recipe)?, context.now],
                    )?;
                }
            }
            audit::append(sql, &context, "template.put", &at.to_string(), "ok", None)?;
            template(sql, &at)?.ok_or_else(|| not_found("template"))
        })
        .await
    }

    /// What a tenant means by a name: its own template, or else everybody's.
    pub async fn find_template(&self, tenant: Name, name: Name) -> Result<Template, Fault> {
        self.read(move |sql| {
            let own = TemplateRef { owner: Some(tenant.clone()), name: name.clone() };
            let shared = TemplateRef { owner: None, name: name.clone() };
            match template(sql, &own)? {
                Some(template) => Ok(template),
                None => template(sql, &shared)?.ok_or_else(|| {
                    Fault::new(Kind::NotFound, format!("there is no template '{name}'"))
                        .hint("GET /api/v1/templates lists what there is")
                }),
            }
        })
        .await
    }

    pub async fn template(&self, at: TemplateRef) -> Result<Option<Template>, Fault> {
        self.read(move |sql| template(sql, &at)).await
    }

    /// Everybody's and the tenant's own.
    pub async fn templates(&self, tenant: Name, page: Page) -> Result<Vec<Template>, Fault> {
        self.read(move |sql| {
            let statement = format!(
                "SELECT {COLUMNS} FROM templates WHERE (owner IS NULL OR owner = ?1) AND at > ?2 ORDER BY at LIMIT ?3"
            );
            let rows = sql.rows(&statement, values![&tenant, page.after(), page.one_more()])?;
            rows.into_iter().map(read).collect()
        })
        .await
    }

    /// Those of all tenants, for the pool.
    pub async fn all_templates(&self) -> Result<Vec<Template>, Fault> {
        self.read(|sql| {
            let rows = sql.rows(&format!("SELECT {COLUMNS} FROM templates ORDER BY at"), &[])?;
            rows.into_iter().map(read).collect()
        })
        .await
    }

    /// Sandboxes that were made by it live on until their lease ends.
    pub async fn delete_template(
        &self,
        context: Context,
        at: TemplateRef,
        version: Option<i64>,
    ) -> Result<(), Fault> {
        self.write(move |sql| {
            let before = template_alone(sql, &at)?.ok_or_else(|| not_found("template"))?;
            if version.is_some_and(|version| version != before.version) {
                return Err(stale("template"));
            }
            sql.run("DELETE FROM templates WHERE at = ?1", values![&at])?;
            audit::append(sql, &context, "template.delete", &at.to_string(), "ok", None)
        })
        .await
    }
}

fn template(sql: &mut dyn Sql, at: &TemplateRef) -> Result<Option<Template>, Fault> {
    sql.row(&format!("SELECT {COLUMNS} FROM templates WHERE at = ?1"), values![at])?.map(read).transpose()
}

/// The same, and nobody else changes it until the transaction ends.
fn template_alone(sql: &mut dyn Sql, at: &TemplateRef) -> Result<Option<Template>, Fault> {
    let lock = sql.and_lock();
    sql.row(&format!("SELECT {COLUMNS} FROM templates WHERE at = ?1{lock}"), values![at])?
        .map(read)
        .transpose()
}

fn read(mut row: Row) -> Result<Template, Fault> {
    Ok(Template {
        at: row.parsed()?,
        recipe: row.json()?,
        created_at: row.time()?,
        updated_at: row.time()?,
        version: row.int()?,
    })
}
