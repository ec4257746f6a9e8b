CREATE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit is append-only';
END $$;
CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit FOR EACH ROW EXECUTE FUNCTION refuse_audit_change();
CREATE TRIGGER audit_is_not_shortened BEFORE DELETE OR TRUNCATE ON audit FOR EACH STATEMENT EXECUTE FUNCTION refuse_audit_change();
