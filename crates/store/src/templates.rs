//! The rows of templates and their names. Names belong to teams. Other teams can find a template if it is public.

use sqlx::AssertSqlSafe;

use super::{Store, StoreError, TeamId};
use crate::clock::Timestamp;
use crate::database::{Row, query};

/// A template that a team has built or is about to build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    pub id: String,
    pub team: TeamId,
    pub kind: TemplateKind,
    pub public: bool,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// The names of the template, oldest first.
    pub names: Vec<String>,
}

/// How a template came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemplateKind {
    /// Built from instructions.
    Built,
    /// Taken of a sandbox.
    Snapshot,
}

pub(crate) const SELECT: &str = "SELECT t.id, t.team, t.public, t.created_at, t.updated_at, t.kind, (SELECT string_agg(n.name, ' ' ORDER BY \
     n.created_at, n.name) FROM template_names n WHERE n.template = t.id) FROM templates t WHERE ";

impl Store {
    /// The team's template with that name. Creates it with this id if there is none.
    pub async fn ensure_template(&self, team: &TeamId, name: &str, id: &str) -> Result<Template, StoreError> {
        let failed = StoreError::doing("record a template");
        let mut transaction = self.write.begin().await.map_err(&failed)?;
        transaction.lock(&format!("template name {} {name}", team.0)).await.map_err(&failed)?;
        let now = Timestamp::now();
        let present = query("SELECT template FROM template_names WHERE team = ? AND name = ?")
            .bind(&team.0)
            .bind(name)
            .fetch_optional(&mut transaction)
            .await
            .map_err(&failed)?;
        let id = match present {
            Some(row) => row.get::<String>(0),
            None => {
                query("INSERT INTO templates (id, team, public, created_at, updated_at) VALUES (?, ?, 0, ?, ?)")
                    .bind(id)
                    .bind(&team.0)
                    .bind(now.0)
                    .bind(now.0)
                    .execute(&mut transaction)
                    .await
                    .map_err(&failed)?;
                query("INSERT INTO template_names (team, name, template, created_at) VALUES (?, ?, ?, ?)")
                    .bind(&team.0)
                    .bind(name)
                    .bind(id)
                    .bind(now.0)
                    .execute(&mut transaction)
                    .await
                    .map_err(&failed)?;
                id.to_owned()
            }
        };
        let row = query(AssertSqlSafe(format!("{SELECT} t.id = ?")))
            .bind(&id)
            .fetch_one(&mut transaction)
            .await
            .map_err(&failed)?;
        transaction.commit().await.map_err(&failed)?;
        Ok(read_template(&row))
    }

    /// The template with this id, whichever team owns it.
    pub async fn template(&self, id: &str) -> Result<Option<Template>, StoreError> {
        self.one_template("t.id = ?", &[id]).await
    }

    /// The team's own template with this name, or else the oldest public one of another team.
    pub async fn visible_template(&self, team: &TeamId, name: &str) -> Result<Option<Template>, StoreError> {
        let visible = "t.id IN (SELECT template FROM template_names WHERE name = ?) AND (t.public = 1 OR t.team = ?) \
             ORDER BY t.team <> ?, t.created_at, t.id LIMIT 1";
        self.one_template(visible, &[name, &team.0, &team.0]).await
    }

    /// The template with this name in a namespace, which is the id or the name of a team.
    pub async fn template_of_namespace(&self, space: &str, name: &str) -> Result<Option<Template>, StoreError> {
        let of_space = "t.id IN (SELECT n.template FROM template_names n JOIN teams s ON s.id = n.team \
             WHERE n.name = ? AND (s.id = ? OR lower(replace(s.name, ' ', '-')) = ?)) ORDER BY t.created_at LIMIT 1";
        self.one_template(of_space, &[name, space, space]).await
    }

    async fn one_template(&self, which: &'static str, values: &[&str]) -> Result<Option<Template>, StoreError> {
        let mut query = query(AssertSqlSafe(format!("{SELECT} {which}")));
        for value in values {
            query = query.bind(*value);
        }
        let row = query.fetch_optional(&self.read).await.map_err(StoreError::doing("look up a template"))?;
        Ok(row.as_ref().map(read_template))
    }

    /// The templates that the team has built.
    pub async fn list_templates(&self, team: &TeamId) -> Result<Vec<Template>, StoreError> {
        let built = "t.team = ? AND t.kind = 'template' ORDER BY t.created_at, t.id";
        let rows = query(AssertSqlSafe(format!("{SELECT} {built}")))
            .bind(&team.0)
            .fetch_all(&self.read)
            .await
            .map_err(StoreError::doing("list templates"))?;
        Ok(rows.iter().map(read_template).collect())
    }

    pub async fn publish_template(&self, id: &str, public: bool) -> Result<(), StoreError> {
        query("UPDATE templates SET public = ?, updated_at = ? WHERE id = ?")
            .bind(public)
            .bind(Timestamp::now().0)
            .bind(id)
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("publish a template"))?;
        Ok(())
    }

    /// Removes a template with its names, tags, builds and build logs. The template on the node becomes a leftover.
    pub async fn remove_template(&self, id: &str) -> Result<(), StoreError> {
        let failed = StoreError::doing("remove a template");
        let mut transaction = self.write.begin().await.map_err(&failed)?;
        query(
            "INSERT INTO template_leftovers (server, node_template) SELECT DISTINCT server, node_template FROM template_builds \
             WHERE template = ? AND node_template IS NOT NULL ON CONFLICT DO NOTHING",
        )
        .bind(id)
        .execute(&mut transaction)
        .await
        .map_err(&failed)?;
        query("DELETE FROM templates WHERE id = ?").bind(id).execute(&mut transaction).await.map_err(&failed)?;
        transaction.commit().await.map_err(&failed)
    }

    pub async fn add_leftover(&self, node_template: &str) -> Result<(), StoreError> {
        query("INSERT INTO template_leftovers (server, node_template) VALUES (?, ?) ON CONFLICT DO NOTHING")
            .bind(self.server())
            .bind(node_template)
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("record a leftover"))?;
        Ok(())
    }

    /// The templates on the node that no build needs any more. Deletes the records of those that a build needs again.
    pub async fn leftovers(&self) -> Result<Vec<String>, StoreError> {
        let failed = StoreError::doing("read leftovers");
        let needed = "server = ? AND node_template IN \
             (SELECT b.node_template FROM template_builds b WHERE b.node_template IS NOT NULL AND b.server = ?)";
        query(AssertSqlSafe(format!("DELETE FROM template_leftovers WHERE {needed}")))
            .bind(self.server())
            .bind(self.server())
            .execute(&self.write)
            .await
            .map_err(&failed)?;
        let rows = query("SELECT node_template FROM template_leftovers WHERE server = ? ORDER BY node_template")
            .bind(self.server())
            .fetch_all(&self.write)
            .await;
        Ok(rows.map_err(&failed)?.iter().map(|row| row.get(0)).collect())
    }

    pub async fn forget_leftover(&self, node_template: &str) -> Result<(), StoreError> {
        query("DELETE FROM template_leftovers WHERE server = ? AND node_template = ?")
            .bind(self.server())
            .bind(node_template)
            .execute(&self.write)
            .await
            .map_err(StoreError::doing("delete a leftover"))?;
        Ok(())
    }
}

pub(crate) fn read_template(row: &Row) -> Template {
    let kind: &str = row.get(5);
    // Names contain no spaces.
    let names: Option<&str> = row.get(6);
    Template {
        id: row.get(0),
        team: TeamId(row.get(1)),
        public: row.get(2),
        kind: if kind == "snapshot" { TemplateKind::Snapshot } else { TemplateKind::Built },
        created_at: Timestamp(row.get(3)),
        updated_at: Timestamp(row.get(4)),
        names: names.unwrap_or_default().split_whitespace().map(str::to_owned).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn store(dir: &tempfile::TempDir) -> (Store, TeamId) {
        let store = Store::for_test(dir.path()).await;
        let team = store.ensure_team().await.unwrap();
        (store, team)
    }

    #[tokio::test]
    async fn a_name_keeps_its_template() {
        let dir = tempfile::tempdir().unwrap();
        let (store, team) = store(&dir).await;
        let first = store.ensure_template(&team, "web", "tone").await.unwrap();
        let again = store.ensure_template(&team, "web", "ttwo").await.unwrap();
        assert_eq!((first.id.as_str(), again.id.as_str()), ("tone", "tone"));
        assert_eq!(store.visible_template(&team, "web").await.unwrap().unwrap().names, ["web"]);
        assert_eq!(store.template("ttwo").await.unwrap(), None);
    }

    #[tokio::test]
    async fn others_find_a_name_only_when_it_is_public() {
        let dir = tempfile::tempdir().unwrap();
        let (store, team) = store(&dir).await;
        store.ensure_template(&team, "web", "tone").await.unwrap();
        let other = TeamId("other".to_owned());
        assert_eq!(store.visible_template(&other, "web").await.unwrap(), None);
        store.publish_template("tone", true).await.unwrap();
        assert_eq!(store.visible_template(&other, "web").await.unwrap().unwrap().id, "tone");
        assert_eq!(store.template_of_namespace("default", "web").await.unwrap().unwrap().id, "tone");
        assert_eq!(store.template_of_namespace("other", "web").await.unwrap(), None);
        store.remove_template("tone").await.unwrap();
        assert_eq!(store.visible_template(&other, "web").await.unwrap(), None);
        assert_eq!(store.visible_template(&team, "web").await.unwrap(), None);
    }
}
